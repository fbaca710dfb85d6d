"""Losses against numpy."""

import jax.numpy as jnp
import numpy as np

from tiejax.training.loss import cross_entropy


def test_cross_entropy_against_numpy_and_in_float32():
    logits = np.random.default_rng(0).normal(size=(5, 7)) * 3
    target = np.array([0, 6, 3, 3, 1])
    expected = [np.log(np.exp(row).sum()) - row[t] for row, t in zip(logits, target, strict=True)]
    np.testing.assert_allclose(cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(target)), expected, rtol=1e-5)
    assert cross_entropy(jnp.asarray(logits, jnp.bfloat16), jnp.asarray(target)).dtype == jnp.float32
