"""Alias tables: the encoded distribution and the valid sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiejax.lab.studies.exor.multisets import alias_table


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=70), st.integers(0, 2))
def test_alias_table_encodes_its_probabilities(weights, more):
    probability = np.array(weights) / sum(weights)
    cells = 2 << (len(weights) - 1).bit_length() << more
    threshold, alias = alias_table(probability, cells)
    size = 2**32 // cells
    words = np.zeros(cells)
    for cell in range(cells):  # words below the threshold select the cell itself
        words[cell] += int(threshold[cell])
        words[alias[cell]] += size - int(threshold[cell])
    assert words.sum() == 2**32
    np.testing.assert_allclose(words[: len(weights)], probability * 2**32, rtol=0, atol=1)
    assert (words[len(weights) :] == 0).all()


@pytest.mark.parametrize("cells", [3, 4])
def test_number_of_cells_must_be_a_sufficient_power_of_two(cells):
    with pytest.raises(ValueError, match="power of two"):
        alias_table(np.full(5, 0.2), cells)
