"""Look-ups by products with one-hot columns."""

import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models import features_first


@pytest.mark.parametrize("vocabulary", [7, features_first.SMALL_TABLE, features_first.SMALL_TABLE + 1])
def test_a_lookup_reads_rows(vocabulary):
    rng = np.random.default_rng(0)
    table, tokens = rng.normal(size=(vocabulary, 3)).astype(np.float32), rng.integers(0, vocabulary, (4, 5)).astype(np.int32)
    np.testing.assert_array_equal(features_first.lookup(jnp.asarray(table), jnp.asarray(tokens)), table[tokens])
