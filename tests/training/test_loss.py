"""Losses against numpy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.training.loss import cross_entropy


def test_cross_entropy_against_numpy_and_in_float32():
    logits = np.random.default_rng(0).normal(size=(5, 7)) * 3
    target = np.array([0, 6, 3, 3, 1])
    expected = [np.log(np.exp(row).sum()) - row[t] for row, t in zip(logits, target, strict=True)]
    np.testing.assert_allclose(cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(target)), expected, rtol=1e-5)
    assert cross_entropy(jnp.asarray(logits, jnp.bfloat16), jnp.asarray(target)).dtype == jnp.float32


def test_sequences_and_a_missing_target():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 5)), jnp.float32)
    target = jnp.array([[1, 2, 0, 3], [4, 4, 0, 1]])
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, target)
    np.testing.assert_allclose(cross_entropy(logits, target), expected, rtol=1e-6)
    with pytest.raises((ValueError, TypeError), match="target"):  # a TypeError where signatures are checked
        cross_entropy(logits[0], jnp.array([1]))
