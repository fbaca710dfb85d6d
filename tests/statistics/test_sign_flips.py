"""Sign-flip tests and intervals against enumeration in plain numpy, and against simulated coverage."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiejax.statistics import sign_flips
from tiejax.statistics.sign_flips import FLIPS, WORD, SignFlips, simultaneous_band, subset_means

FEW = st.lists(st.integers(-6, 6).map(lambda k: k / 2), min_size=1, max_size=10)  # with ties and zeros
TENTHS = st.integers(0, 2**32 - 1).map(lambda seed: tenths(np.random.default_rng(seed)))
MEANS = st.integers(-8, 8).map(lambda k: k / 4)


def flips_of(d):
    d = np.asarray(d, float)
    return SignFlips(d, subset_means([d])[0])


def tenths(rng):
    """17 to 70 differences with many ties, whose means of subsets are equal in theory but not in floating point."""
    return rng.integers(-2, 4, rng.integers(17, 71)) / 10


def enumerated(d, mean):
    return shares(d, mean, np.array(list(itertools.product([1, -1], repeat=len(d)))))


def same_signs(seeds):
    """The random flips of the tested code as a matrix of signs, unpacked in numpy."""
    words = [np.asarray(sign_flips._random_word(number)) for number in jnp.arange(-(-seeds // WORD))]
    bits = [(word[:, None] >> np.arange(WORD, dtype=np.uint32)) & 1 for word in words]
    return 1 - 2 * np.concatenate(bits, axis=1)[:, :seeds].astype(float)


def shares(d, mean, signs):
    """p-values (two-sided, above, below): shares of the flips, rows of signs, whose sum is as extreme as that of the data."""
    centred = np.asarray(d, float) - mean
    sums = signs @ centred
    total, rounding = centred.sum(), 1e-9
    two_sided = np.abs(sums) >= abs(total) - rounding
    return two_sided.mean(), (sums >= total - rounding).mean(), (sums <= total + rounding).mean()


@settings(max_examples=60, deadline=None)
@given(FEW, MEANS)
def test_p_values_are_those_of_an_enumeration(d, mean):
    flips = flips_of(d)
    two_sided, above, below = enumerated(d, mean)
    assert flips.two_sided(mean) == pytest.approx(two_sided)
    assert flips.above(mean) == pytest.approx(above)
    assert flips.below(mean) == pytest.approx(below)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=2, max_size=8))
def test_studentised_and_plain_mean_give_the_same_test(d):
    signs = np.array(list(itertools.product([1, -1], repeat=len(d))))
    flipped = signs * np.array(d)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(flipped.mean(1)) / flipped.std(1, ddof=1)
    t = np.where(np.isnan(t), 0, t)
    observed = t[0]
    expected = 1.0 if not np.any(d) else (t >= observed * (1 - 1e-6) - 1e-9).mean()
    assert flips_of(d).two_sided() == pytest.approx(expected)


def assert_inverted(d, alpha):
    """Just inside of an end p is above alpha, just outside it is not."""
    flips, d = flips_of(d), np.asarray(d, float)
    for (low, high), p_low, p_high in (
        (flips.interval(alpha), flips.two_sided, flips.two_sided),
        (flips.one_sided_limits(alpha), flips.above, flips.below),
    ):
        inside, outside = min(1e-6, (high - low) / 2), -1e-6
        if np.isfinite(low):
            assert p_low(low + inside) > alpha
            assert p_low(low + outside) <= alpha
        else:
            assert p_low(-1e6) > alpha
        if np.isfinite(high):
            assert p_high(high - inside) > alpha
            assert p_high(high - outside) <= alpha
        else:
            assert p_high(1e6) > alpha


@settings(max_examples=60, deadline=None)
@given(FEW, st.sampled_from([0.3, 0.1, 0.05, 0.01]))
def test_intervals_are_the_means_that_are_not_rejected(d, alpha):
    assert_inverted(d, alpha)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(TENTHS, st.sampled_from([0.3, 0.05, 0.001, 1e-5]))
def test_intervals_from_random_flips_are_the_means_that_are_not_rejected(d, alpha):
    assert_inverted(d, alpha)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(TENTHS, st.sampled_from([0.3, 0.05, 0.005]))
def test_an_interval_excludes_a_tied_mean_exactly_if_it_is_rejected(d, alpha):
    flips = flips_of(d)
    for mean in np.round(np.arange(-4, 5) / 20 + d.mean().round(1), 2):
        low, high = flips.interval(alpha)
        assert (flips.two_sided(mean) <= alpha) == (not low <= mean <= high)
        low, high = flips.one_sided_limits(alpha)
        assert (flips.above(mean) <= alpha) == (mean < low)
        assert (flips.below(mean) <= alpha) == (mean > high)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(TENTHS)
def test_random_flips_are_counted_as_in_numpy(d):
    flips, signs = flips_of(d), same_signs(len(d))
    for mean in (0.0, 0.1, -0.05, d.mean(), d.mean() + 0.15):
        found = flips.two_sided(mean), flips.above(mean), flips.below(mean)
        expected = shares(d, mean, signs)
        # Where all differences are on one side, p is exact instead.
        assert found == pytest.approx(expected) or d.min() > mean or d.max() < mean


def test_random_flips_are_fair_and_independent():
    signs = same_signs(40)
    assert (signs[0] == 1).all()
    assert len(np.unique(signs, axis=0)) == FLIPS
    correlations = signs.T @ signs / FLIPS
    # Six standard errors.
    assert np.abs(signs.mean(0)).max() < 6 / FLIPS**0.5
    assert np.abs(correlations - np.eye(40)).max() < 6 / FLIPS**0.5


def test_random_flips_estimate_the_exact_p(monkeypatch):
    d = np.random.default_rng(5).exponential(size=16) - 0.55
    exact = flips_of(d)
    monkeypatch.setattr(sign_flips, "MOST_ENUMERATED", 8)
    random = flips_of(d)
    assert random._number == FLIPS
    for name, mean in (("two_sided", 0.0), ("two_sided", 0.2), ("above", 0.1), ("below", 0.9)):
        p = getattr(exact, name)(mean)
        assert 0 < p < 1
        # Five standard errors.
        assert getattr(random, name)(mean) == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / FLIPS) + 1 / FLIPS)
    np.testing.assert_allclose(random.interval(0.05), exact.interval(0.05), atol=0.02)


def test_random_flips_agree_with_an_independent_sample_of_flips():
    rng = np.random.default_rng(0)
    d = rng.exponential(size=40) - 0.75
    flips = flips_of(d)
    signs = rng.choice([-1.0, 1.0], size=(200_000, 40))
    for mean in (0.0, 0.1, float(d.mean()) + 0.2):
        sums, total = signs @ (d - mean), (d - mean).sum()
        pairs = (
            (flips.two_sided(mean), (np.abs(sums) >= abs(total)).mean()),
            (flips.above(mean), (sums >= total).mean()),
            (flips.below(mean), (sums <= total).mean()),
        )
        for found, expected in pairs:
            # Five standard errors of the two samples.
            assert abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) * (1 / FLIPS + 1 / 200_000)) + 2 / FLIPS


def test_claims_with_different_numbers_of_seeds_do_not_disturb_each_other():
    rng = np.random.default_rng(1)
    together = [rng.normal(0.3, 1, n) for n in (3, 16, 17, 40, 130)]
    for d, means in zip(together, subset_means(together), strict=True):
        assert SignFlips(d, means).two_sided() == flips_of(d).two_sided()


@pytest.mark.parametrize("n", [5, 12, 32, 64])
def test_constant_differences(n):
    constant, zero = flips_of(np.full(n, 0.0833)), flips_of(np.zeros(n))
    assert constant.two_sided() == pytest.approx(2.0 ** (1 - n))
    assert constant.above(0) == pytest.approx(2.0**-n)
    assert zero.two_sided() == 1
    assert zero.above(-0.1) == pytest.approx(2.0**-n)
    assert zero.below(0.1) == pytest.approx(2.0**-n)
    assert zero.above(0.1) == 1


def test_intervals_cover_the_mean_of_symmetric_differences():
    rng = np.random.default_rng(2)
    samples = [rng.laplace(1.0, 1.0, 12) for _ in range(400)]
    intervals = [SignFlips(d, means).interval(0.05) for d, means in zip(samples, subset_means(samples), strict=True)]
    covered = np.mean([low <= 1 <= high for low, high in intervals])
    # Exact coverage is at least 95 %; four standard errors are .044.
    assert 0.906 < covered <= 1


@pytest.mark.slow
def test_simultaneous_band_covers_the_whole_curve():
    rng = np.random.default_rng(3)
    truth = np.linspace(-1, 1, 6)
    jointly = pointwise = 0
    for _ in range(200):
        common = rng.normal(size=14)
        curve = truth[:, None] + common + rng.normal(size=(6, 14))
        mean, low, high = simultaneous_band(curve)
        np.testing.assert_allclose(mean, curve.mean(1))
        covered = (low <= truth) & (truth <= high)
        jointly += covered.all()
        pointwise += covered[0]
    assert 174 <= jointly <= 200  # 95 % of 200, less five standard errors
    assert pointwise >= jointly
    assert np.isnan(simultaneous_band(np.ones((3, 1)))[1]).all()


@pytest.mark.parametrize("value", [6.855, 3.0])
def test_a_constant_point_leaves_the_band_of_the_others(value):
    """The mean of six times 6.855 is another number."""
    curve = np.random.default_rng(0).normal(size=(3, 6))
    for found, alone in zip(
        simultaneous_band(np.vstack([curve, np.full((1, 6), value)])), simultaneous_band(curve), strict=True
    ):
        np.testing.assert_allclose(found[:3], alone)
        np.testing.assert_allclose(found[3], value)


def test_simultaneous_band_contains_the_bands_of_its_points():
    curve = np.random.default_rng(4).normal(size=(5, 20)).cumsum(0)
    mean, low, high = simultaneous_band(curve, alpha=0.1)
    for point in range(5):
        _, low_alone, high_alone = simultaneous_band(curve[point : point + 1], alpha=0.1)
        assert low[point] <= low_alone < mean[point] < high_alone <= high[point]
    # A single point: the t statistic of an enumeration, as in a studentised sign-flip test of the centred differences.
    d = curve[0, :10] - curve[0, :10].mean()
    flipped = np.array(list(itertools.product([1, -1], repeat=10))) * d
    t = np.abs(flipped.mean(1)) / (flipped.std(1, ddof=1) / np.sqrt(10))
    width = np.quantile(t, 0.9, method="higher") * d.std(ddof=1) / np.sqrt(10)
    _, low, high = simultaneous_band(curve[:1, :10], alpha=0.1)
    np.testing.assert_allclose((high - low) / 2, width)
