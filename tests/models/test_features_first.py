"""Lookups by products with one-hot columns."""

import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models import features_first


@pytest.mark.parametrize("vocabulary", [7, features_first.SMALL_TABLE, features_first.SMALL_TABLE + 1])
def test_lookup_reads_rows(vocabulary):
    rng = np.random.default_rng(0)
    table, tokens = rng.normal(size=(vocabulary, 3)).astype(np.float32), rng.integers(0, vocabulary, (4, 5)).astype(np.int32)
    np.testing.assert_array_equal(features_first.lookup(jnp.asarray(table), jnp.asarray(tokens)), table[tokens])


@pytest.mark.parametrize("length", [3, features_first.SMALL_TABLE + 1])
def test_at_reads_one_position_of_each_sequence(length):
    rng = np.random.default_rng(1)
    x, position = rng.normal(size=(length, 2, 4)).astype(np.float32), np.array([2, 0, length - 1, 1])
    expected = [[x[position[column], row, column] for column in range(4)] for row in range(2)]
    np.testing.assert_array_equal(features_first.at(jnp.asarray(x), jnp.asarray(position)), expected)
