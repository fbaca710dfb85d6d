"""Bootstrap-t against all resamples of few seeds, its intervals against its tests, and its size on skewed differences."""

import itertools

import numpy as np
import pytest

from tiejax.statistics.bootstrap_t import RESAMPLES, BootstrapT, statistics
from tiejax.statistics.mean_tests import mean_tests

FEW = [np.array([0.1, 0.5, 0.7, 2.0, 3.5]), np.array([-1.0, 0.25, 0.25, 4.0]), np.array([0.0, 1.0, 1.5, 2.0])]


def every(d):
    """Return t* of all n^n resamples."""
    resamples = d[np.array(list(itertools.product(range(len(d)), repeat=len(d))))]
    mean, spread = resamples.mean(axis=1) - d.mean(), resamples.std(axis=1)
    flat = spread < 1e-12
    # The mean of a resample that repeats one seed may be that of the data.
    infinite = np.where(np.abs(mean) < 1e-12, 0.0, np.copysign(np.inf, mean))
    return np.where(flat, infinite, mean / np.where(flat, 1, spread))


@pytest.mark.parametrize("place", range(len(FEW)))
def test_p_values_are_shares_of_all_resamples(place):
    d, t = FEW[place], every(FEW[place])
    test = BootstrapT(d, statistics(FEW)[place])
    for mean in (-0.5, 0.0, 0.3, 1.0, 5.0):
        of_data = (d.mean() - mean) / d.std()
        above, below = (t >= of_data - 1e-9).mean(), (t <= of_data + 1e-9).mean()
        assert test.above(mean) == pytest.approx(above, abs=4 * np.sqrt(0.25 / RESAMPLES))
        assert test.below(mean) == pytest.approx(below, abs=4 * np.sqrt(0.25 / RESAMPLES))
        assert test.two_sided(mean) == min(1, 2 * (test.above(mean) if d.mean() > mean else test.below(mean)))


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.002])
def test_an_interval_holds_the_means_that_are_not_rejected(alpha):
    d = np.random.default_rng(0).exponential(size=20)
    test = BootstrapT(d, statistics([d])[0])
    for p_value, (low, high) in ((test.two_sided, test.interval(alpha)), (None, test.one_sided_limits(alpha))):
        of_low, of_high = (p_value, p_value) if p_value else (test.above, test.below)
        step = 1e-4 * (high - low)
        assert of_low(low + step) > alpha >= of_low(low - step)
        assert of_high(high - step) > alpha >= of_high(high + step)


def test_an_interval_is_infinite_if_resamples_without_spread_are_not_rare():
    d = np.array([0.0, 0.0, 0.0, 1.0])  # 81 of 256 resamples have no seed but the first three
    assert BootstrapT(d, statistics([d])[0]).interval(0.05)[1] == np.inf
    assert BootstrapT(d, statistics([d])[0]).below(100.0) > 0.05


def test_claims_of_different_sizes_do_not_depend_on_each_other():
    together, alone = statistics(FEW), [statistics([d])[0] for d in FEW]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_scale_and_place_change_nothing():
    d = np.random.default_rng(1).exponential(size=12)
    low, high = BootstrapT(d, statistics([d])[0]).interval(0.05)
    moved = 1e-6 * d - 3
    found = BootstrapT(moved, statistics([moved])[0]).interval(0.05)
    np.testing.assert_allclose(np.array(found) + 3, 1e-6 * np.array([low, high]), rtol=1e-6)


def test_equal_differences_are_tested_by_flips_alone():
    same, one_arm = mean_tests([np.full(8, 0.1), np.arange(8.0)], [True, True])
    assert (len(same.tests), same.two_sided()) == (1, 2.0**-7)
    assert len(one_arm.tests) == 2


@pytest.mark.slow
def test_skewed_differences_are_rejected_less_often_than_by_flips():
    """Exponential differences of mean 0: flips reject about 10 % of means at 5 %, both tests together about 5 %."""
    rng, flips, both = np.random.default_rng(2), 0, 0
    for _ in range(10):
        tests = mean_tests([rng.exponential(size=16) - 1 for _ in range(40)], [True] * 40)
        flips += sum(test.tests[0].two_sided() <= 0.05 for test in tests)
        both += sum(test.two_sided() <= 0.05 for test in tests)
    assert 24 <= flips <= 80
    assert both <= 34  # 20 are expected at .05; more than 34 have a probability below .002
    assert both < flips
