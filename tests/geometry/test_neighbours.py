"""Shared neighbours against sorting all cosines, and intervals by their coverage."""

import math

import ml_dtypes
import numpy as np
import pytest
from random_tables import gaussian, sampled, shares_by_loop

from tiejax.geometry.neighbours import neighbour_overlap


def related(rows, seed=1):
    first = gaussian(rows, 6, seed)
    return first, first @ gaussian(6, 4, seed + 1) + gaussian(rows, 4, seed + 2)


def test_overlap_of_all_rows_against_a_loop():
    first, second = related(70)
    for k in (1, 10, 69):
        found = neighbour_overlap(first, second, k=k)
        assert found.estimate == pytest.approx(shares_by_loop(first, second, k).mean())
        assert (found.interval, found.queries, found.rows, found.k) == (None, 70, 70, k)
        assert found.chance == pytest.approx(k / 69)


def test_zero_rows_are_not_neighbours():
    first, second = related(30)
    first[[2, 5]] = 0
    second[5] = 0
    for k in (4, 29):
        found = neighbour_overlap(first, second, k=k)
        assert found.estimate == pytest.approx(np.delete(shares_by_loop(first, second, k), [2, 5]).mean())
        assert found.queries == 28
        assert found.chance == pytest.approx(min(1, 27 / k * min(1, k / 27) * min(1, k / 28)))
    assert neighbour_overlap(first, 0 * second, k=4) == (0, None, 0, 30, 4, 0)


def test_impossible_arguments_are_refused():
    first, second = related(30)
    for k, sample in ((0, 9), (30, 9), (4, 1)):
        with pytest.raises(ValueError, match="expected k from 1 to 29 and a sample of at least 2"):
            neighbour_overlap(first, second, k=k, sample=sample)
    with pytest.raises(ValueError, match="expected tables with equally many rows, got 30 and 20"):
        neighbour_overlap(first, second[:20])


def test_equal_tables_with_rows_of_zeros_have_equal_neighbours():
    table = related(30)[0]
    table[20:] = 0
    assert neighbour_overlap(table, 2 * table, k=4).estimate == 1


def test_chance_is_the_overlap_of_independent_tables():
    """Of 50 rows, 5 of the second table are not 0."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(400):
        first, second = rng.normal(size=(2, 50, 6)).astype(np.float32)
        second[5:] = 0
        found = neighbour_overlap(first, second, k=4)
        shares.append(found.estimate)
    assert found.chance == pytest.approx(4 / 49)
    assert abs(np.mean(shares) - found.chance) < 4 * np.std(shares) / np.sqrt(len(shares))


def test_of_equal_rows_the_first_is_the_neighbour():
    # Axes of opposite and equal sign: cosines of exactly 1, 0 and -1, so that most of them are equal.
    axes = np.vstack([np.eye(4), -np.eye(4), np.eye(4)]).astype(np.float32)
    second = gaussian(12, 4)
    for k in (1, 3, 8):
        assert neighbour_overlap(axes, second, k=k).estimate == pytest.approx(shares_by_loop(axes, second, k).mean())


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_rows_of_tiny_norm_have_their_neighbours(dtype):
    first, second = (table.astype(dtype) for table in related(60))
    first[5:30] = (first[5:30].astype(np.float32) * 2.0**-63).astype(dtype)
    found = neighbour_overlap(first, second, k=6)
    assert found.estimate == pytest.approx(shares_by_loop(first, second, 6).mean())


def test_independent_tables_overlap_by_chance():
    found = neighbour_overlap(gaussian(600, 8, 1), gaussian(600, 8, 2), k=30)
    # One row shares a hypergeometric number, of variance below k chance: five standard deviations of the mean share.
    assert found.estimate == pytest.approx(30 / 599, abs=5 * math.sqrt(30 / 599 / 30 / 600))


@pytest.mark.slow
def test_samples_cover_the_exact_overlap():
    first, second = related(400)
    shares = shares_by_loop(first, second, 5)
    inside = 0
    for seed in range(100):
        found = neighbour_overlap(first, second, k=5, sample=100, seed=seed)
        assert found.estimate == pytest.approx(shares[sampled(400, 100, seed)].mean())
        inside += found.interval[0] <= shares.mean() <= found.interval[1]
    # 95 of 100, minus three standard deviations of the count; too wide intervals would cover all of them.
    assert 88 <= inside <= 99
    drawn = shares[sampled(400, 100, 99)]
    error = 1.959964 * drawn.std(ddof=1) * math.sqrt((1 - 100 / 400) / 100)
    assert found.interval == pytest.approx((drawn.mean() - error, drawn.mean() + error), abs=1e-6)


def test_one_query_has_no_interval():
    table = np.eye(3, dtype=np.float32)
    other = table.copy()
    other[0] = 0
    found = [neighbour_overlap(table, other, k=1, sample=2, seed=seed) for seed in range(8)]
    assert {each.queries for each in found} == {1, 2}
    assert all((each.interval is None) == (each.queries == 1) for each in found)
