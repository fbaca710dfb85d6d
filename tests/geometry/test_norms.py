"""Norms, cosines and equality of two tables against loops."""

import numpy as np
import pytest
from random_tables import gaussian, mean_cosine
from scipy import linalg

from tiejax.geometry import table_rows
from tiejax.geometry.norms import norms_and_equality


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 4 * 5 * 7)


def test_norms_and_equality(small_blocks):
    first = gaussian(50, 5)
    second = first.copy()
    second[[3, 41], [0, 4]] += [0.5, -2.0]
    found = norms_and_equality(first, second)
    np.testing.assert_allclose(found.first, [linalg.norm(row) for row in first], rtol=1e-6)
    np.testing.assert_allclose(found.second, [linalg.norm(row) for row in second], rtol=1e-6)
    assert found.differing == 2
    assert found.largest == pytest.approx(2.0, abs=1e-6)
    alone = norms_and_equality(first)
    np.testing.assert_array_equal(alone.first, found.first)
    assert (alone.second, alone.differing, alone.largest, alone.cosine) == (None, None, None, None)
    assert norms_and_equality(first, first.copy()).differing == 0


def test_cosines_of_uncentred_rows(small_blocks):
    source, target = gaussian(30, 5, 1), gaussian(30, 5, 2)
    source[[3, 7]] = 0
    target[[7, 9]] = 0
    cosines = norms_and_equality(source, target).cosine
    assert np.flatnonzero(np.isnan(cosines)).tolist() == [3, 7, 9]
    for row in (0, 5, 29):
        assert cosines[row] == pytest.approx(mean_cosine(source[[row]], target[[row]]), abs=1e-6)


def test_tables_of_different_widths_differ_in_every_row():
    found = norms_and_equality(gaussian(9, 5), gaussian(9, 3))
    assert (found.differing, found.cosine) == (9, None)
    assert found.second.shape == (9,)
