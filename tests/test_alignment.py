"""Alignment of two tables against constructed cases, numpy, scipy and slow loops; tables read by blocks."""

import math

import ml_dtypes
import numpy as np
import pytest
from scipy import linalg

from tiejax.geometry import tables
from tiejax.geometry.alignment import alignment, canonical_correlations, cross_products, neighbour_overlap, token_cosines


def gaussian(rows, width, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def rotation(width, seed=9):
    return linalg.qr(gaussian(width, width, seed).astype(float))[0]


def centred(table):
    table = np.asarray(table, float)
    return table - table.mean(0)


def mean_cosine(mapped, target):
    """Mean cosine by a loop over tokens; a token with a zero row is left out."""
    pairs = [(x, y) for x, y in zip(mapped, target, strict=True) if x.any() and y.any()]
    return np.mean([x @ y / math.sqrt(x @ x) / math.sqrt(y @ y) for x, y in pairs])


class Reader:
    """A table that is no array: it gives rows in a dtype of its own, and remembers the most that it was asked for."""

    def __init__(self, table, dtype=np.float32):
        self.stored = table.astype(dtype)
        self.shape = table.shape
        self.largest = 0

    def __getitem__(self, rows):
        found = self.stored[rows]
        self.largest = max(self.largest, len(found))
        return found


def small_blocks(monkeypatch, size):
    monkeypatch.setattr(tables, "BLOCK_BYTES", size)


def test_a_rotated_scaled_shifted_table_is_found_by_procrustes():
    source = gaussian(200, 8)
    found = alignment(source, (3 * source @ rotation(8) + 5).astype(np.float32))
    assert found.procrustes == pytest.approx(1, abs=1e-6)
    assert found.least_squares == pytest.approx(1, abs=1e-6)
    assert found.identity < 0.5
    assert found.tokens == 200


def test_a_scaled_table_points_the_same_way_and_a_shifted_one_does_not():
    source = gaussian(200, 8)
    assert alignment(source, 2 * source).identity == pytest.approx(1, abs=1e-6)
    shifted = alignment(source, source + 5)
    assert shifted.identity == pytest.approx(mean_cosine(source, source + 5), abs=1e-6)
    assert shifted.identity < 0.5
    assert shifted.procrustes == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("scales", [np.linspace(1, 10, 8), np.geomspace(1e-6, 1, 8)])
def test_a_linear_map_is_found_by_least_squares_alone(scales):
    source = gaussian(200, 8) * scales.astype(np.float32)
    target = (source @ np.diag(1 / scales) @ rotation(8) @ np.diag(np.linspace(1, 5, 8))).astype(np.float32)
    found = alignment(source, target)
    assert found.least_squares == pytest.approx(1, abs=1e-6)
    assert found.procrustes < 0.99


@pytest.mark.parametrize(("source_width", "target_width"), [(8, 8), (5, 8), (8, 5)])
def test_scores_against_scipy_and_lstsq(source_width, target_width):
    source = gaussian(60, source_width, 1)
    target = gaussian(60, target_width, 2) + 0.4 * source @ gaussian(source_width, target_width, 3) + 1
    x, y = centred(source), centred(target)
    found = alignment(source, target)
    fitted = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert found.least_squares == pytest.approx(mean_cosine(fitted, y), abs=1e-6)
    if source_width == target_width:
        assert found.procrustes == pytest.approx(mean_cosine(x @ linalg.orthogonal_procrustes(x, y)[0], y), abs=1e-6)
        assert found.identity == pytest.approx(mean_cosine(source, target), abs=1e-6)
    else:
        assert found.identity is None
        # The polar factor of X^T Y, which scipy computes for any shape.
        assert found.procrustes == pytest.approx(mean_cosine(x @ linalg.polar(x.T @ y)[0], y), abs=1e-6)


@pytest.mark.parametrize("constant", [0, 2])
def test_dependent_and_constant_columns_are_fitted_as_the_pseudo_inverse_does(constant):
    source = gaussian(80, 3, 4) @ gaussian(3, 10, 5)
    source[:, :constant] = 3  # whole rows of X^T Y are then 0
    target = gaussian(80, 10, 6) + source
    x, y = centred(source), centred(target)
    found = alignment(source, target)
    assert found.least_squares == pytest.approx(mean_cosine(x @ np.linalg.pinv(x, rcond=1e-4) @ y, y), abs=1e-6)
    assert found.procrustes == pytest.approx(mean_cosine(x @ linalg.orthogonal_procrustes(x, y)[0], y), abs=1e-6)


def test_fewer_rows_than_columns_are_fitted_exactly():
    found = alignment(gaussian(20, 32, 1), gaussian(20, 32, 2))
    assert found.least_squares == pytest.approx(1, abs=1e-5)
    assert found.procrustes < 0.95


def test_independent_tables_score_what_fitting_gives_by_chance():
    rows, width = 4000, 64
    found = alignment(gaussian(rows, width, 1), gaussian(rows, width, 2))
    # Standard deviation of a mean of 4,000 cosines: 1 / sqrt(width rows) = .002; four of them.
    assert found.identity == pytest.approx(0, abs=0.008)
    assert found.least_squares == pytest.approx(math.sqrt(width / (rows - 1)), abs=0.008)
    # Singular values of a square Gaussian matrix follow the quarter circle, of mean 8 / (3 pi) sqrt(width).
    assert found.procrustes == pytest.approx(8 / (3 * math.pi) * math.sqrt(width / rows), abs=0.008)


def test_zero_rows_are_left_out_and_counted():
    source, target = gaussian(30, 4, 1), gaussian(30, 4, 2)
    source[[3, 7]] = 0
    target[[7, 9]] = 0
    found = alignment(source, target)
    assert found.left_out == {"identity": 3, "procrustes": 0, "least_squares": 0}
    assert found.identity == pytest.approx(mean_cosine(source, target), abs=1e-6)
    cosines = token_cosines(source, target)
    assert np.flatnonzero(np.isnan(cosines)).tolist() == [3, 7, 9]
    assert cosines[5] == pytest.approx(mean_cosine(source[5:6], target[5:6]), abs=1e-6)


def test_rows_on_the_mean_are_left_out_of_centred_maps():
    source = np.array([[1, 2], [5, -3], [-5, 3], [2, 1], [-2, -1], [0, 0]], np.float32) + 1
    source[0] = 1
    found = alignment(source, gaussian(6, 2))
    assert found.left_out == {"identity": 0, "procrustes": 2, "least_squares": 2}


def test_a_table_of_one_repeated_row_has_no_centred_alignment():
    found = alignment(np.full((10, 3), 0.3, np.float32), gaussian(10, 3))
    assert found.procrustes is None
    assert found.least_squares is None
    assert found.left_out == {"identity": 0, "procrustes": 10, "least_squares": 10}
    assert found.identity == pytest.approx(mean_cosine(np.ones((10, 3)), gaussian(10, 3)), abs=1e-6)


def test_cross_products_keep_their_digits_far_from_the_origin(monkeypatch):
    small_blocks(monkeypatch, 4 * 6 * 70)
    # Rows drift from block to block, far from the origin: means of blocks differ by more than rows do.
    drift = np.linspace(0, 20, 500, dtype=np.float32)[:, None]
    source, target = gaussian(500, 6, 1) + 1000 + drift, gaussian(500, 5, 2) - 300 + drift
    found = cross_products(source, target)
    x, y = centred(source), centred(target)
    for mine, exact in ((found.source_gram, x.T @ x), (found.target_gram, y.T @ y), (found.cross, x.T @ y)):
        assert np.abs(mine - exact).max() < 1e-6 * np.abs(exact).max()
    np.testing.assert_allclose(found.source_mean, source.mean(0, dtype=float), rtol=1e-9)


def test_some_rows_are_fitted_and_scored_alone(monkeypatch):
    small_blocks(monkeypatch, 4 * 8 * 16)
    source, target = gaussian(100, 8, 1), gaussian(100, 8, 2)
    rows = np.sort(np.random.default_rng(0).choice(100, 40, replace=False))
    x, y = centred(source[rows]), centred(target[rows])
    found = alignment(source, target, rows=rows)
    assert found.tokens == 40
    assert found.identity == pytest.approx(mean_cosine(source[rows], target[rows]), abs=1e-6)
    assert found.least_squares == pytest.approx(mean_cosine(x @ np.linalg.lstsq(x, y, rcond=None)[0], y), abs=1e-6)


def test_the_size_of_blocks_changes_nothing(monkeypatch):
    source = gaussian(300, 6, 1)
    target = source @ gaussian(6, 6, 2) + gaussian(300, 6, 3)

    def everything():
        found = alignment(source, target)
        return [
            *found[:3],
            *token_cosines(source, target),
            *canonical_correlations(source, target),
            neighbour_overlap(source, target, k=5, sample=40).estimate,
        ]

    whole = everything()
    for size in (1, 4 * 6 * 7, 4 * 6 * 128):
        small_blocks(monkeypatch, size)
        np.testing.assert_allclose(everything(), whole, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_a_reader_is_asked_for_blocks_alone(monkeypatch, dtype):
    rows, width = 400, 8
    small_blocks(monkeypatch, 4 * width * 25)
    source, target = Reader(gaussian(rows, width, 1), dtype), Reader(gaussian(rows, width, 2), dtype)
    x, y = source.stored.astype(np.float32), target.stored.astype(np.float32)
    found = alignment(source, target, products=cross_products(source, target))
    assert found.identity == pytest.approx(mean_cosine(x, y), abs=1e-6)
    assert found.procrustes == pytest.approx(
        mean_cosine(centred(x) @ linalg.orthogonal_procrustes(centred(x), centred(y))[0], centred(y)), abs=1e-6
    )
    overlap = neighbour_overlap(source, target, k=3, sample=60)
    assert overlap.estimate == pytest.approx(np.mean(shares_by_loop(x, y, 3)[sampled(rows, 60)]))
    token_cosines(source, target)
    canonical_correlations(source, target)
    assert 0 < source.largest <= 25
    assert 0 < target.largest <= 25


@pytest.mark.parametrize(("first_width", "second_width"), [(6, 6), (4, 7), (7, 4)])
def test_canonical_correlations_against_orthonormal_bases(first_width, second_width):
    first = gaussian(90, first_width, 1)
    second = gaussian(90, second_width, 2) + first @ gaussian(first_width, second_width, 3)
    bases = [linalg.qr(centred(table), mode="economic")[0] for table in (first, second)]
    expected = linalg.svdvals(bases[0].T @ bases[1])
    np.testing.assert_allclose(canonical_correlations(first, second), expected, atol=1e-6)


def test_canonical_correlations_that_were_put_there():
    wanted = np.array([0.95, 0.7, 0.2, 0.0])
    basis = linalg.qr(centred(gaussian(200, 8)), mode="economic")[0]
    x, y = basis[:, :4], basis[:, :4] * wanted + basis[:, 4:] * np.sqrt(1 - wanted**2)
    first, second = 20 * x @ gaussian(4, 4, 1) + 3, 20 * y @ gaussian(4, 4, 2) - 1
    np.testing.assert_allclose(canonical_correlations(first, second), wanted, atol=1e-5)


def test_directions_that_are_not_there_correlate_with_nothing():
    first = gaussian(100, 2, 1) @ gaussian(2, 5, 2)
    second = np.hstack([first @ gaussian(5, 2, 3), gaussian(100, 2, 4)])
    np.testing.assert_allclose(canonical_correlations(first, second), [1, 1, 0, 0], atol=1e-6)


def shares_by_loop(first, second, k):
    """Share of common neighbours of every row, by sorting all cosines: larger first, then lower rows."""

    def neighbours(table, i):
        norms = [math.sqrt(row @ row) for row in table]
        if norms[i] == 0:
            return set()
        cosines = [(-(table[i] @ table[j]) / norms[i] / norms[j], j) for j in range(len(table)) if j != i and norms[j]]
        return {j for _, j in sorted(cosines)[:k]}

    first, second = np.asarray(first, float), np.asarray(second, float)
    return np.array([len(neighbours(first, i) & neighbours(second, i)) / k for i in range(len(first))])


def sampled(rows, number, seed=0):
    return np.random.default_rng(seed).choice(rows, number, replace=False)


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


def test_rows_of_no_norm_are_nobodys_neighbours():
    first, second = related(30)
    first[[2, 5]] = 0
    second[5] = 0
    for k in (4, 29):
        assert neighbour_overlap(first, second, k=k).estimate == pytest.approx(shares_by_loop(first, second, k).mean())


def test_of_equal_rows_the_first_are_neighbours():
    # Axes of opposite and equal sign: cosines of exactly 1, 0 and -1, so that most of them are equal.
    axes = np.vstack([np.eye(4), -np.eye(4), np.eye(4)]).astype(np.float32)
    second = gaussian(12, 4)
    for k in (1, 3, 8):
        assert neighbour_overlap(axes, second, k=k).estimate == pytest.approx(shares_by_loop(axes, second, k).mean())


def test_independent_tables_overlap_by_chance():
    found = neighbour_overlap(gaussian(600, 8, 1), gaussian(600, 8, 2), k=30)
    # One row shares a hypergeometric number, of variance below k chance: five standard deviations of the mean share.
    assert found.estimate == pytest.approx(30 / 599, abs=5 * math.sqrt(30 / 599 / 30 / 600))


def test_samples_cover_the_exact_overlap():
    first, second = related(400)
    shares = shares_by_loop(first, second, 5)
    inside = 0
    for seed in range(100):
        found = neighbour_overlap(first, second, k=5, sample=100, seed=seed)
        assert found.estimate == pytest.approx(shares[sampled(400, 100, seed)].mean())
        inside += found.interval[0] <= shares.mean() <= found.interval[1]
    # 95 of 100, less three standard deviations of the count; intervals of any width would cover all of them.
    assert 88 <= inside <= 99
    drawn = shares[sampled(400, 100, 99)]
    error = 1.959964 * drawn.std(ddof=1) * math.sqrt((1 - 100 / 400) / 100)
    assert found.interval == pytest.approx((drawn.mean() - error, drawn.mean() + error), abs=1e-6)


def test_tables_that_do_not_fit_are_refused_in_one_line():
    table = gaussian(10, 4)
    with pytest.raises(ValueError, match="10 and 9 rows"):
        alignment(table, gaussian(9, 4))
    with pytest.raises(ValueError, match=r"shape \(10,\).*\[rows, width\]"):
        canonical_correlations(table, table[:, 0])
    with pytest.raises(ValueError, match="widths 4 and 3"):
        token_cosines(table, gaussian(10, 3))
    for rows in ([], [3, 3], [5, 2], [-1, 2], [4, 10]):
        with pytest.raises(ValueError, match="ascending, without repeats, and within 0 to 9"):
            alignment(table, table, rows=np.array(rows, int))
    for k in (0, 10):
        with pytest.raises(ValueError, match="k must be within 1 to 9"):
            neighbour_overlap(table, table, k=k)
    with pytest.raises(ValueError, match=r"products of 10 rows .* are not of these tables: 5 rows"):
        alignment(table, table, rows=np.arange(5), products=cross_products(table, table))
    with pytest.raises(ValueError, match="at least 2"):
        neighbour_overlap(table, table, k=1, sample=1)


def test_a_value_that_is_not_finite_is_named_by_its_row(monkeypatch):
    small_blocks(monkeypatch, 4 * 4 * 3)
    table, spoilt = gaussian(10, 4), gaussian(10, 4)
    spoilt[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7 of a table"):
        alignment(table, spoilt)
    with pytest.raises(ValueError, match="row 7 of a table"):
        alignment(table, spoilt, rows=np.array([1, 2, 4, 7, 8]))
    with pytest.raises(ValueError, match="row 7 of a table"):
        neighbour_overlap(spoilt, table, k=2, sample=3)
