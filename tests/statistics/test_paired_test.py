"""Paired statistics over seeds against enumeration, coverage and hand-computed values."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tiejax.statistics.paired_test import holm, paired_test


def exact_wilcoxon(d):
    """Two-sided signed-rank p by enumeration of all signs."""
    ranks = stats.rankdata(np.abs(d))
    observed = ranks[np.asarray(d) > 0].sum()
    sums = [sum(r for r, sign in zip(ranks, signs, strict=True) if sign) for signs in itertools.product([0, 1], repeat=len(d))]
    low = np.mean([s <= observed + 1e-9 for s in sums])
    high = np.mean([s >= observed - 1e-9 for s in sums])
    return min(1.0, 2 * min(low, high))


@given(st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 1e-3), min_size=6, max_size=9, unique_by=abs))
@settings(max_examples=25, deadline=None)
def test_wilcoxon_is_exact_for_few_seeds(d):
    result = paired_test(np.array(d))
    assert result.p == pytest.approx(exact_wilcoxon(d), abs=1e-12)
    assert result.estimate == pytest.approx(np.median(d))


def test_rank_biserial_by_hand():
    # |d| ranks 1, 2, 3, 4, 5, 6; the negative ones are 1 and 3: (17 - 4) / 21.
    result = paired_test(np.array([-0.1, 0.2, -0.3, 0.4, 0.5, 0.6]))
    assert result.effect_size == pytest.approx((17 - 4) / 21)


def test_bca_interval_covers_the_median_it_estimates():
    """Coverage over 200 samples with a known median."""
    generator = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        low, high = paired_test(generator.exponential(size=32)).interval
        inside += low <= math.log(2) <= high
    # 95 % of 200, less four standard deviations of the count.
    assert 178 <= inside < 200


def test_mcnemar_by_hand():
    # 9 pairs differ, 8 in one direction: p = 2 (C(9,0) + C(9,1)) / 2^9.
    d = np.array([-1] * 8 + [1] + [0] * 11, float)
    result = paired_test(d, binary=True)
    assert result.p == pytest.approx(2 * (1 + 9) / 2**9)
    assert result.estimate == pytest.approx(-7 / 20)
    assert result.effect_size == pytest.approx(-7 / 9)


@pytest.mark.parametrize("d", [[1.0, 2, 3, 4, 5], [2.0] * 10, [0.0] * 10])
def test_few_seeds_or_no_variance_give_no_p(d):
    result = paired_test(np.array(d))
    assert result.p is None
    assert result.interval is None
    assert result.estimate == np.median(d)


def test_no_seeds():
    assert paired_test(np.zeros(0)).n == 0
    assert paired_test(np.zeros(0)).estimate is None


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
