"""Alignment of two tables, and cosines of mapped rows, against constructed cases, numpy, scipy and slow loops."""

import math

import numpy as np
import pytest
from random_tables import centred, gaussian, mean_cosine, rotation
from scipy import linalg

from tiejax.geometry import table_rows
from tiejax.geometry.alignment import alignment, least_squares_chance, mapped_cosines
from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import maps_between, whitening


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 4 * 5 * 7)


def test_a_rotated_scaled_shifted_table_is_found_by_procrustes():
    source = gaussian(200, 8)
    found = alignment(source, (3 * source @ rotation(8) + 5).astype(np.float32))
    assert found.procrustes == pytest.approx(1, abs=1e-6)
    assert found.least_squares == pytest.approx(1, abs=1e-6)
    assert found.identity < 0.5


def test_a_scaled_table_points_the_same_way_and_a_shifted_one_does_not():
    source = gaussian(200, 8)
    assert alignment(source, 2 * source).identity == pytest.approx(1, abs=1e-6)
    shifted = alignment(source, source + 5)
    assert shifted.identity == pytest.approx(mean_cosine(source, source + 5), abs=1e-6)
    assert shifted.identity < 0.5
    assert shifted.procrustes == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("scales", [np.linspace(1, 10, 8), np.geomspace(1e-6, 1, 8)])
def test_a_linear_map_is_found_by_least_squares_only(scales):
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


def test_independent_tables_score_the_chance_level():
    rows, width = 4000, 64
    found = alignment(gaussian(rows, width, 1), gaussian(rows, width, 2))
    # Standard deviation of a mean of 4,000 cosines: 1 / sqrt(width rows) = .002; four of them.
    assert found.identity == pytest.approx(0, abs=0.008)
    assert found.least_squares == pytest.approx(math.sqrt(width / (rows - 1)), abs=0.008)
    # Singular values of a square Gaussian matrix follow the quarter circle, of mean 8 / (3 pi) sqrt(width).
    assert found.procrustes == pytest.approx(8 / (3 * math.pi) * math.sqrt(width / rows), abs=0.008)


def test_zero_rows_are_left_out():
    source, target = gaussian(30, 4, 1), gaussian(30, 4, 2)
    source[[3, 7]] = 0
    target[[7, 9]] = 0
    found = alignment(source, target)
    assert found.identity == pytest.approx(mean_cosine(source, target), abs=1e-6)


def test_rows_on_the_mean_are_left_out_of_centred_maps():
    source = np.array([[1, 2], [5, -3], [-5, 3], [2, 1], [-2, -1], [0, 0]], np.float32) + 1
    source[0] = 1
    target = gaussian(6, 2)
    x, y = centred(source), centred(target)
    assert (~x.any(axis=1)).sum() == 2
    found = alignment(source, target)
    assert found.least_squares == pytest.approx(mean_cosine(x @ np.linalg.lstsq(x, y)[0], y), abs=1e-6)
    assert found.procrustes == pytest.approx(mean_cosine(x @ linalg.orthogonal_procrustes(x, y)[0], y), abs=1e-6)


def test_a_table_of_one_repeated_row_has_no_centred_alignment():
    found = alignment(np.full((10, 3), 0.3, np.float32), gaussian(10, 3))
    assert found.procrustes is None
    assert found.least_squares is None
    assert found.identity == pytest.approx(mean_cosine(np.ones((10, 3)), gaussian(10, 3)), abs=1e-6)


@pytest.mark.parametrize("widths", [(5, 4), (4, 5)])
def test_mapped_cosines_against_lstsq_and_svd(small_blocks, widths):
    first = gaussian(60, widths[0])
    second = first @ gaussian(*widths, seed=1) + 0.8 * gaussian(60, widths[1], seed=2) + 3
    products = cross_products(first, second)
    maps = maps_between(products, (whitening(products.source_gram), whitening(products.target_gram)))
    rows = np.array([0, 1, 2, 7, 30, 31, 59])
    means = products.source_mean, products.target_mean
    found = mapped_cosines(first, second, rows, means, maps)
    x, y = (table - table.mean(0) for table in (first, second))
    left, _, right = linalg.svd(x.T @ y, full_matrices=False)
    for mine, mapped, wanted in (
        (found.from_source, x @ np.linalg.lstsq(x, y)[0], y),
        (found.from_target, y @ np.linalg.lstsq(y, x)[0], x),
        (found.procrustes, x @ left @ right, y),
    ):
        expected = [a @ b / linalg.norm(a) / linalg.norm(b) for a, b in zip(mapped[rows], wanted[rows], strict=True)]
        np.testing.assert_allclose(mine, expected, atol=1e-5)
    everything = mapped_cosines(first, second, np.arange(60), means, maps)
    assert everything.from_source.mean() == pytest.approx(alignment(first, second).least_squares, abs=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(400, 16), (300, 60)])
def test_chance_level_of_unrelated_tables(rows, width):
    first, second = gaussian(rows, width, 3), gaussian(rows, width, 4)
    assert alignment(first, second).least_squares == pytest.approx(least_squares_chance(rows, width), abs=0.03)


def test_with_few_rows_the_chance_level_is_one():
    assert least_squares_chance(10, 50) == 1.0
    assert alignment(gaussian(10, 50), gaussian(10, 50, 1)).least_squares == pytest.approx(1.0, abs=1e-4)
