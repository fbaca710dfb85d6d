"""Ranks of frequency and bands over them against scipy and a loop."""

import itertools

import numpy as np
from random_tables import gaussian
from scipy import stats

from tiejax.geometry.ranks import bands_by_rank, frequency_ranks


def test_ranks_fall_with_frequency_and_rise_with_ids():
    assert frequency_ranks(np.array([3, 0, 7, 3, 0])).tolist() == [2, 4, 1, 3, 5]
    counts = np.random.default_rng(0).integers(0, 9, 40)
    expected = stats.rankdata(-counts + np.arange(40) * 1e-6, method="ordinal")
    np.testing.assert_array_equal(frequency_ranks(counts), expected)


def test_unsigned_counts_rank_as_signed_ones():
    assert frequency_ranks(np.array([0, 5, 100], np.uint32)).tolist() == [3, 2, 1]


def test_bands_by_rank_against_a_loop():
    values = gaussian(1000, 1)[:, 0]
    values[[5, 500]] = np.nan
    ranks = np.random.default_rng(1).permutation(1000) + 1
    chosen = np.random.default_rng(2).random(1000) < 0.8
    found = bands_by_rank(values, ranks, chosen, bins=12)
    used = [(rank, value) for rank, value, take in zip(ranks, values, chosen, strict=True) if take and not np.isnan(value)]
    edges = np.geomspace(1, max(rank for rank, _ in used) + 1, 13)
    expected = []
    for low, high in itertools.pairwise(edges):
        if inside := [(rank, value) for rank, value in used if low <= rank < high]:
            quantiles = np.quantile([value for _, value in inside], (0.1, 0.5, 0.9))
            expected.append([np.mean([rank for rank, _ in inside]), len(inside), *quantiles])
    np.testing.assert_allclose(np.array([*found]).T, expected, rtol=1e-5)
    assert found.tokens.sum() == len(used)


def test_bands_without_values_are_empty():
    found = bands_by_rank(np.full(4, np.nan), np.arange(1, 5))
    assert [len(part) for part in found] == [0] * 5
