"""Norms and equality of two tables against loops."""

import numpy as np
import pytest
from random_tables import gaussian
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
    assert (alone.second, alone.differing, alone.largest) == (None, None, None)
    assert norms_and_equality(first, first.copy()).differing == 0


def test_tables_of_other_widths_differ_in_every_row():
    found = norms_and_equality(gaussian(9, 5), gaussian(9, 3))
    assert found.differing == 9
    assert found.second.shape == (9,)
    with pytest.raises(ValueError, match="one row per token"):
        norms_and_equality(gaussian(9, 5), gaussian(8, 5))
