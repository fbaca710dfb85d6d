"""Distances between embeddings, and their trajectories, against loops and by hand."""

import itertools
import math

import numpy as np

from tiejax.geometry.distances import (
    fluctuation,
    group_pairs,
    log_distance,
    mean_distance,
    pairwise_distances,
    symbol_pairs,
)


def test_distances_against_a_loop():
    table = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = pairwise_distances(table)
    expected = [math.dist(table[i], table[j]) for i, j in itertools.combinations(range(5), 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert symbol_pairs(5) == list(itertools.combinations(range(5), 2))


def test_distances_of_float16_do_not_overflow_and_one_symbol_has_none():
    np.testing.assert_allclose(pairwise_distances(np.array([[0, 0], [300, 300]], np.float16)), [300 * math.sqrt(2)], rtol=1e-6)
    assert pairwise_distances(np.ones((1, 3))).shape == (0,)


def test_mean_distance_picks_its_pairs():
    distances = np.arange(21.0)[None]  # pair k has distance k
    index = symbol_pairs(7)
    pairs = group_pairs((0, 1), (2, 3))
    assert sorted(pairs) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    expected = np.mean([index.index(pair) for pair in pairs])
    assert mean_distance(distances, 7, pairs).tolist() == [expected]
    assert np.isnan(mean_distance(distances, 7, [])).all()
    assert group_pairs((3, 1), (2,)) == [(2, 3), (1, 2)]


def test_fluctuation_is_the_deviation_from_the_mean_change_at_each_phase():
    """Against loops over the last two periods."""
    values = np.random.default_rng(0).normal(size=(2, 12))
    period = 4
    expected = []
    for row in values:
        changes = [later - earlier for earlier, later in itertools.pairwise(row[-9:].tolist())]
        means = [(changes[phase] + changes[phase + period]) / 2 for phase in range(period)]
        expected.append(np.mean([abs(change - means[place % period]) for place, change in enumerate(changes)]))
    np.testing.assert_allclose(fluctuation(values, period), expected, rtol=1e-12)


def test_what_recurs_with_the_period_and_drift_do_not_fluctuate():
    steps = np.arange(13)
    recurring = np.sin(2 * np.pi * steps / 6) + 0.3 * steps
    np.testing.assert_allclose(fluctuation(recurring, 6), 0, atol=1e-12)
    # One record that is displaced by 1 in the last period: two changes of 6 differ by 1 from those a period earlier.
    recurring[10] += 1
    np.testing.assert_allclose(fluctuation(recurring, 6), 2 / 6 / 2, rtol=1e-12)


def test_fluctuation_needs_two_periods():
    assert np.isnan(fluctuation(np.ones((2, 8)), 4)).all()
    assert fluctuation(np.ones((2, 9)), 4).tolist() == [0, 0]


def test_log_distance_of_equal_symbols_is_finite():
    np.testing.assert_allclose(log_distance(np.array([0.0, 1.0, math.e])), [math.log(1e-12), 0, 1])
