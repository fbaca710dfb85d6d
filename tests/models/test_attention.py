"""Attention: a softmax of scaled products, by a fused kernel where there is one."""

import jax.numpy as jnp
import numpy as np

from tiejax.models.attention import attend, has_fused


def test_a_fused_kernel_is_used_where_there_is_one():
    assert has_fused(9.0, jnp.dtype("bfloat16"), 64, 128)
    assert not has_fused(9.0, jnp.dtype("float32"), 64, 128)
    assert not has_fused(None, jnp.dtype("bfloat16"), 64, 128)
    assert not has_fused(7.5, jnp.dtype("bfloat16"), 64, 128)
    assert not has_fused(9.0, jnp.dtype("float16"), 12, 128)
    assert not has_fused(9.0, jnp.dtype("float16"), 256, 128)
    assert not has_fused(9.0, jnp.dtype("float16"), 64, 127)


def test_attention_is_a_softmax_of_scaled_products(x64):
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 2, 5, 3, 4))
    mask = rng.random((2, 1, 5, 5)) < 0.6
    mask |= np.eye(5, dtype=bool)
    found = np.asarray(attend(*map(jnp.asarray, (query, key, value, mask))))
    for batch in range(2):
        for head in range(3):
            scores = query[batch, :, head] @ key[batch, :, head].T / 2
            share = np.exp(scores) * mask[batch, 0]
            share /= share.sum(1, keepdims=True)
            np.testing.assert_allclose(found[batch, :, head], share @ value[batch, :, head], rtol=0, atol=1e-12)
