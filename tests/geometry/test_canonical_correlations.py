"""Canonical correlations against orthonormal bases, planted values and chance."""

import numpy as np
import pytest
from random_tables import canonical_correlations, centred, gaussian
from scipy import linalg


@pytest.mark.parametrize(("first_width", "second_width"), [(6, 6), (4, 7), (7, 4)])
def test_canonical_correlations_against_orthonormal_bases(first_width, second_width):
    first = gaussian(90, first_width, 1)
    second = gaussian(90, second_width, 2) + first @ gaussian(first_width, second_width, 3)
    bases = [linalg.qr(centred(table), mode="economic")[0] for table in (first, second)]
    expected = linalg.svdvals(bases[0].T @ bases[1])
    np.testing.assert_allclose(canonical_correlations(first, second), expected, atol=1e-6)


def test_planted_canonical_correlations():
    wanted = np.array([0.95, 0.7, 0.2, 0.0])
    basis = linalg.qr(centred(gaussian(200, 8)), mode="economic")[0]
    x, y = basis[:, :4], basis[:, :4] * wanted + basis[:, 4:] * np.sqrt(1 - wanted**2)
    first, second = 20 * x @ gaussian(4, 4, 1) + 3, 20 * y @ gaussian(4, 4, 2) - 1
    np.testing.assert_allclose(canonical_correlations(first, second), wanted, atol=1e-5)


def test_directions_without_variance_have_correlation_zero():
    first = gaussian(100, 2, 1) @ gaussian(2, 5, 2)
    second = np.hstack([first @ gaussian(5, 2, 3), gaussian(100, 2, 4)])
    np.testing.assert_allclose(canonical_correlations(first, second), [1, 1, 0, 0], atol=1e-6)


@pytest.mark.parametrize(("rows", "width"), [(400, 16), (300, 60)])
def test_largest_of_unrelated_tables(rows, width):
    """2 sqrt(c (1 - c)) for tables of equal width, c = width / (rows - 1) (Wachter 1980)."""
    first, second = gaussian(rows, width, 3), gaussian(rows, width, 4)
    c = width / (rows - 1)
    assert canonical_correlations(first, second)[0] == pytest.approx(2 * np.sqrt(c * (1 - c)), abs=0.06)
