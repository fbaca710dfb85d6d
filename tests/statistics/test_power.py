"""The smallest detectable difference against simulated studies, and the number of seeds against a published table."""

import numpy as np
import pytest
from scipy import stats

from tiejax.statistics.claims import Claim, assess, verdicts
from tiejax.statistics.power import fewest_seeds, seeds_needed, smallest_detectable
from tiejax.statistics.sign_flips import SignFlips, subset_means


@pytest.mark.parametrize("n", [10, 32])
def test_four_of_five_t_tests_show_the_smallest_detectable_difference(n):
    difference = smallest_detectable(2.0, n, 0.05, sides=2)
    samples = np.random.default_rng(0).normal(difference, 2.0, (4000, n))
    shown = (stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05).mean()
    assert shown == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("n", [5, 6, 7])
@pytest.mark.parametrize("sides", [1, 2])
def test_multiples_near_the_floor_are_quantiles_of_the_limits_of_studies_without_an_effect(n, sides):
    studies = list(np.random.default_rng(n).normal(size=(400, n)))
    tests = [SignFlips(d, means) for d, means in zip(studies, subset_means(studies), strict=True)]
    for rejected in (1, 1.5, 2, 5, 12):  # of 2^n flips, on each side
        alpha = sides * rejected / 2**n
        limits = [(test.interval(alpha) if sides == 2 else test.one_sided_limits(alpha))[0] for test in tests]
        assert smallest_detectable(1.0, n, alpha, sides) == pytest.approx(-np.quantile(limits, 0.2), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("sides", [1, 2])
def test_four_of_five_sign_flip_tests_show_the_smallest_detectable_difference(sides):
    difference = smallest_detectable(2.0, 10, 0.05, sides)
    samples = np.random.default_rng(0).normal(difference, 2.0, (1500, 10))
    if sides == 1:  # from its margin, which is 5 below 0
        fields = {"goal": "non-inferiority", "margin": 5.0}
        samples -= 5
    else:
        fields = {}
    studies = [[Claim("x", "s", "e", d, 1, **fields)] for d in samples]
    shown = np.mean([study == ["supported"] for study in verdicts(studies)])
    assert shown == pytest.approx(0.8, abs=0.04)


def test_seeds_needed_as_in_published_tables():
    """J. Cohen, Statistical Power Analysis, 1988: with power .8 at .05 a paired t-test of d = .5 needs 34 pairs, .8 needs 15.

    The exact power takes the noncentral t distribution, from which the formula differs by at most one pair here.
    """
    assert seeds_needed(1.0, 0.5, 0.05, sides=2) == pytest.approx(34, abs=1)
    assert seeds_needed(1.0, 0.8, 0.05, sides=2) == pytest.approx(15, abs=1)


def test_seeds_needed_is_the_smallest_number():
    n = seeds_needed(3.0, 0.4, 0.01, sides=1)
    assert smallest_detectable(3.0, n, 0.01, 1) <= 0.4 < smallest_detectable(3.0, n - 1, 0.01, 1)


@pytest.mark.slow
@pytest.mark.parametrize("sides", [1, 2])
def test_seeds_that_cannot_be_enough_are_not_simulated_and_the_others_are(sides):
    """Against a search that simulates every number of seeds near the smallest possible p."""
    for deviation in (0.3, 0.35, 0.4, 0.5, 0.6):
        enough = (n for n in range(10, 40) if smallest_detectable(deviation, n, 0.003, sides) <= 0.5)
        assert seeds_needed(deviation, 0.5, 0.003, sides) == next(enough)


def test_sign_flips_need_a_number_of_seeds_whatever_the_difference():
    # 2 x 2^-n <= .05 from n = 6 on.
    assert seeds_needed(1e-6, 1.0, 0.05, sides=2) == 6
    assert seeds_needed(1e-6, 1.0, 0.05, sides=1) == 5


@pytest.mark.parametrize(("claims", "seeds"), [(1, 6), (2, 7), (9, 9), (15, 10), (20, 10), (26, 11)])
def test_fewest_seeds_are_those_with_which_a_verdict_is_possible(claims, seeds):
    """One of the claims has differences of one sign, all others have none."""
    assert fewest_seeds(claims) == seeds
    for number, verdict in ((seeds, "supported"), (seeds - 1, "undecided")):
        others = [Claim(f"x{i}", "s", "e", np.zeros(number), 1) for i in range(claims - 1)]
        (study,) = verdicts([[Claim("one", "s", "e", np.arange(1.0, number + 1), 1), *others]])
        assert study == [verdict, *["undecided"] * (claims - 1)]


@pytest.mark.parametrize("margin", [1e-2, 1e-300])
def test_more_than_a_million_seeds_are_not_counted(margin):
    """As after models that diverge and stay finite."""
    differences = np.array([1.0, 2, 3, 4, 5, 6, 7, 9]) * 1e7
    (row,) = assess([Claim("a", "A", "nats", differences, sign=1, margin=margin)])
    assert (row["seeds_needed"], row["verdict"]) == (None, "supported")


@pytest.mark.parametrize("margin", [0.3, 0.75])
def test_the_seeds_that_equivalence_needs_show_it_in_four_of_five_studies(margin):
    probe = np.random.default_rng(0).normal(size=40)
    about = {"sign": 0, "goal": "equivalence", "margin": margin * float(probe.std(ddof=1))}
    (row,) = assess([Claim("x", "s", "e", probe, **about)])
    n, rng = row["seeds_needed"], np.random.default_rng(1)
    studies = rng.normal(size=(4000, n))
    error = studies.std(axis=1, ddof=1) / np.sqrt(n)
    shown = np.abs(studies.mean(axis=1)) + stats.t.ppf(0.95, n - 1) * error < margin  # two t tests, each of level .05
    assert shown.mean() == pytest.approx(0.8, abs=0.03)
