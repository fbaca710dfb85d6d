"""Distances between embeddings, and their trajectories, against loops and by hand."""

import itertools
import math

import numpy as np

from tiejax.geometry.distances import (
    area_under_log,
    group_pairs,
    log_roughness,
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


def test_mean_distance_picks_its_pairs():
    distances = np.arange(21.0)[None]  # pair k has distance k
    index = symbol_pairs(7)
    pairs = group_pairs((0, 1), (2, 3))
    assert sorted(pairs) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    expected = np.mean([index.index(pair) for pair in pairs])
    assert mean_distance(distances, 7, pairs).tolist() == [expected]
    assert np.isnan(mean_distance(distances, 7, [])).all()
    assert group_pairs((3, 1), (2,)) == [(2, 3), (1, 2)]


def test_area_and_roughness_by_hand():
    steps = np.array([0, 10, 30])
    distances = np.exp([[0.0, -1.0, -3.0]])
    # Trapezia: 10 * (-.5) + 20 * (-2) = -45 over 30 steps.
    np.testing.assert_allclose(area_under_log(distances, steps), [-1.5])
    np.testing.assert_allclose(log_roughness(distances), [1.5])
    assert np.isfinite(area_under_log(np.zeros((1, 3)), steps)).all()


def test_roughness_of_a_single_record_is_nan():
    assert np.isnan(log_roughness(np.ones((2, 1)))).all()
