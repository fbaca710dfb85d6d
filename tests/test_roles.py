"""Where two tables stand: norms, equality, bands over rank, chance levels and mapped cosines, against loops and numpy."""

import itertools

import numpy as np
import pytest
from scipy import linalg, stats

from tiejax.geometry import roles, tables
from tiejax.geometry.alignment import OLMO_1B, alignment, canonical_correlations, cross_products

MARKS = OLMO_1B["least_squares"], OLMO_1B["neighbour_overlap"]


def gaussian(rows, width, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 4 * 5 * 7)


def test_norms_and_equality(small_blocks):
    first = gaussian(50, 5)
    second = first.copy()
    second[[3, 41], [0, 4]] += [0.5, -2.0]
    found = roles.norms_and_equality(first, second)
    np.testing.assert_allclose(found.first, [linalg.norm(row) for row in first], rtol=1e-6)
    np.testing.assert_allclose(found.second, [linalg.norm(row) for row in second], rtol=1e-6)
    assert found.differing == 2
    assert found.largest == pytest.approx(2.0, abs=1e-6)
    alone = roles.norms_and_equality(first)
    np.testing.assert_array_equal(alone.first, found.first)
    assert (alone.second, alone.differing, alone.largest) == (None, None, None)
    assert roles.norms_and_equality(first, first.copy()).differing == 0


def test_tables_of_other_widths_differ_in_every_row():
    found = roles.norms_and_equality(gaussian(9, 5), gaussian(9, 3))
    assert found.differing == 9
    assert found.second.shape == (9,)
    with pytest.raises(ValueError, match="one row per token"):
        roles.norms_and_equality(gaussian(9, 5), gaussian(8, 5))


@pytest.mark.parametrize("backwards", [False, True])
def test_mapped_cosines_against_lstsq_and_svd(small_blocks, backwards):
    first = gaussian(60, 5)
    second = first @ gaussian(5, 4, seed=1) + 0.8 * gaussian(60, 4, seed=2) + 3
    products = cross_products(first, second)
    if backwards:
        first, second, products = second, first, roles.swapped(products)
    rows = np.array([0, 1, 2, 7, 30, 31, 59])
    x, y = (table - table.mean(0) for table in (first, second))
    mapped = x @ np.linalg.lstsq(x, y)[0]
    expected = [a @ b / linalg.norm(a) / linalg.norm(b) for a, b in zip(mapped[rows], y[rows], strict=True)]
    np.testing.assert_allclose(roles.mapped_cosines(first, second, rows, products), expected, atol=1e-5)
    left, _, right = linalg.svd(x.T @ y, full_matrices=False)
    expected = [a @ b / linalg.norm(a) / linalg.norm(b) for a, b in zip((x @ left @ right)[rows], y[rows], strict=True)]
    np.testing.assert_allclose(roles.mapped_cosines(first, second, rows, products, orthogonal=True), expected, atol=1e-5)
    everything = roles.mapped_cosines(first, second, np.arange(60), products)
    assert everything.mean() == pytest.approx(alignment(first, second).least_squares, abs=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(400, 16), (300, 60)])
def test_chance_levels_of_unrelated_tables(rows, width):
    first, second = gaussian(rows, width, seed=3), gaussian(rows, width, seed=4)
    assert alignment(first, second).least_squares == pytest.approx(roles.least_squares_chance(rows, width), abs=0.03)
    largest = canonical_correlations(first, second)[0]
    assert largest == pytest.approx(roles.largest_canonical_chance(rows, width, width), abs=0.06)


def test_chance_is_certain_where_there_are_few_rows():
    assert roles.least_squares_chance(10, 50) == 1.0
    assert roles.largest_canonical_chance(10, 6, 6) == 1.0
    assert alignment(gaussian(10, 50), gaussian(10, 50, seed=1)).least_squares == pytest.approx(1.0, abs=1e-4)


def test_ranks_fall_with_frequency_and_rise_with_ids():
    assert roles.frequency_ranks(np.array([3, 0, 7, 3, 0])).tolist() == [2, 4, 1, 3, 5]
    counts = np.random.default_rng(0).integers(0, 9, 40)
    expected = stats.rankdata(-counts + np.arange(40) * 1e-6, method="ordinal")
    np.testing.assert_array_equal(roles.frequency_ranks(counts), expected)


def test_bands_by_rank_against_a_loop():
    values = gaussian(1000, 1)[:, 0]
    values[[5, 500]] = np.nan
    ranks = np.random.default_rng(1).permutation(1000) + 1
    chosen = np.random.default_rng(2).random(1000) < 0.8
    found = roles.bands_by_rank(values, ranks, chosen, bins=12)
    kept = [(rank, value) for rank, value, take in zip(ranks, values, chosen, strict=True) if take and not np.isnan(value)]
    edges = np.geomspace(1, max(rank for rank, _ in kept) + 1, 13)
    expected = []
    for low, high in itertools.pairwise(edges):
        if inside := [(rank, value) for rank, value in kept if low <= rank < high]:
            quantiles = np.quantile([value for _, value in inside], (0.1, 0.5, 0.9))
            expected.append([np.mean([rank for rank, _ in inside]), len(inside), *quantiles])
    np.testing.assert_allclose(np.array([*found]).T, expected, rtol=1e-5)
    assert found.tokens.sum() == len(kept)


def test_bands_of_nothing_are_empty():
    found = roles.bands_by_rank(np.full(4, np.nan), np.arange(1, 5))
    assert [len(part) for part in found] == [0] * 5


@pytest.mark.parametrize(
    ("least_squares", "overlap", "chance", "expected"),
    [
        (0.8, 0.8, 0.1, "near"),
        (0.719, 0.733, 0.1, "near"),
        (0.8, 0.6, 0.1, "between"),
        (0.6, 0.6, 0.1, "between"),
        (0.8, 0.1, 0.1, "between"),
        (0.3, 0.1, 0.1, "apart"),
        (0.9, 0.1, 0.6, "apart"),  # least squares would map any two tables
        (0.9, 0.8, 0.6, "near"),
        (None, 0.8, 0.1, "near"),
    ],
)
def test_standing(least_squares, overlap, chance, expected):
    assert roles.standing(least_squares, overlap, *MARKS, chance) == expected
