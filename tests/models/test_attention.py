"""Attention and its derivative, with and without a fused kernel, against the formula."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models.attention import attend, has_fused
from tiejax.models.layers import drop_probability, keep_mask


def test_fused_kernel_is_used_where_available():
    assert has_fused(9.0, jnp.dtype("bfloat16"), 64, 128, 128)
    assert not has_fused(9.0, jnp.dtype("float32"), 64, 128, 128)
    assert not has_fused(None, jnp.dtype("bfloat16"), 64, 128, 128)
    assert not has_fused(7.5, jnp.dtype("bfloat16"), 64, 128, 128)
    assert not has_fused(9.0, jnp.dtype("float16"), 12, 128, 128)
    assert not has_fused(9.0, jnp.dtype("float16"), 256, 128, 128)
    assert not has_fused(9.0, jnp.dtype("float16"), 64, 127, 127)
    assert not has_fused(9.0, jnp.dtype("float16"), 64, 1, 128)


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


BATCH, LENGTH, HEADS, SIZE = 2, 6, 3, 4
SEGMENTS = np.array([[1, 1, 2, 2, 2, 0], [0, 0, 0, 0, 0, 0]])  # the second row is padding
MASKS = {
    "none": None,
    "segments": (SEGMENTS[:, :, None] == SEGMENTS[:, None, :])[:, None],
    "causal": np.tril(np.ones((LENGTH, LENGTH), bool))[None, None],
    "one query": (SEGMENTS[:, 2:3, None] == SEGMENTS[:, None, :])[:, None],
}


def plain(query, key, value, mask):
    """Attention by its formula."""
    scores = jnp.einsum("bqhw,bkhw->bhqk", query, key) / jnp.sqrt(query.shape[-1])
    scores = scores if mask is None else jnp.where(mask, scores, -1e30)
    share = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bkhw->bqhw", share / share.sum(-1, keepdims=True), value)


def inputs(queries=LENGTH, dtype=None):
    rng = np.random.default_rng(queries)
    shapes = [(BATCH, number, HEADS, SIZE) for number in (queries, LENGTH, LENGTH)]
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def loss_of(attention, mask):
    """Return a loss that depends on every output differently, computed in float32 or wider."""

    def loss(inputs):
        attended = attention(*inputs, mask) * jnp.float32(1)
        return jnp.sum(jnp.sin(attended + jnp.arange(attended.size).reshape(attended.shape)))

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_values_and_gradients_match_the_formula(x64, name):
    mask = MASKS[name] if MASKS[name] is None else jnp.asarray(MASKS[name])
    given = inputs(1 if name == "one query" else LENGTH)
    expected, found = (jax.jit(jax.value_and_grad(loss_of(attention, mask)))(given) for attention in (plain, attend))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-12), found, expected)


@pytest.mark.parametrize("name", MASKS)
def test_dropped_probabilities_match_the_formula(x64, name):
    """Values and gradients, with the dropout mask written into the formula."""
    mask = MASKS[name] if MASKS[name] is None else jnp.asarray(MASKS[name])
    given, rate, key = inputs(1 if name == "one query" else LENGTH), 0.3, jax.random.key(3)
    keep = keep_mask(key, rate, (BATCH, HEADS, given[0].shape[1], LENGTH))
    assert 0 < keep.sum() < keep.size

    def by_hand(query, key, value, mask):
        scores = jnp.einsum("bqhw,bkhw->bhqk", query, key) / jnp.sqrt(query.shape[-1])
        share = jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e30)) * keep / (1 - drop_probability(rate))
        return jnp.einsum("bhqk,bkhw->bqhw", share, value)

    def ours(*arguments):
        return attend(*arguments, dropout=rate, dropout_key=key)

    expected, found = (jax.jit(jax.value_and_grad(loss_of(attention, mask)))(given) for attention in (by_hand, ours))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-12), found, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_causal_attention_equals_attention_with_a_mask(x64, masked):
    mask = jnp.asarray(MASKS["segments"]) if masked else jnp.ones((1, 1, LENGTH, LENGTH), bool)
    before = jnp.asarray(MASKS["causal"])
    found = attend(*inputs(), mask if masked else None, causal=True)
    np.testing.assert_allclose(found, plain(*inputs(), mask & before), rtol=0, atol=1e-12)


def test_gradient_by_finite_differences(x64):
    given, mask, step = inputs(), jnp.asarray(MASKS["segments"]), 1e-5
    loss, rng = loss_of(attend, mask), np.random.default_rng(0)
    gradient = jax.grad(loss)(given)
    for _ in range(3):
        along = tuple(jnp.asarray(rng.standard_normal(leaf.shape)) for leaf in given)
        moved = [loss(tuple(x + sign * step * d for x, d in zip(given, along, strict=True))) for sign in (1, -1)]
        slope = sum(jnp.sum(g * d) for g, d in zip(gradient, along, strict=True))
        np.testing.assert_allclose((moved[0] - moved[1]) / (2 * step), slope, rtol=1e-7)


@pytest.mark.slow
def test_vmap_and_rematerialisation_do_not_change_results(x64):
    mask = jnp.asarray(MASKS["segments"])
    gradient = jax.grad(loss_of(attend, mask))
    members = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, leaf**2]), inputs())
    found = jax.vmap(gradient)(members)
    loss = jax.checkpoint(loss_of(attend, mask))
    _, scanned = jax.lax.scan(lambda carry, member: (carry, jax.grad(loss)(member)), 0, members)
    for member in range(3):
        alone = gradient(jax.tree.map(lambda leaf, member=member: leaf[member], members))
        for one, other, third in zip(alone, found, scanned, strict=True):
            np.testing.assert_allclose(other[member], one, rtol=0, atol=1e-13)
            np.testing.assert_allclose(third[member], one, rtol=0, atol=1e-13)


def test_half_precision_keeps_its_dtype_and_is_accurate_to_rounding():
    mask = jnp.asarray(MASKS["segments"])
    # Not compiled as a whole, which could keep float32 between operations.
    gradient = jax.grad(loss_of(attend, mask))(inputs(dtype=jnp.bfloat16))
    assert {leaf.dtype for leaf in gradient} == {jnp.dtype(jnp.bfloat16)}
    # The same numbers, exact in bfloat16, computed in float32: bfloat16 rounds to 2^-8.
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), inputs(dtype=jnp.bfloat16))
    expected = jax.device_get(jax.jit(jax.grad(loss_of(attend, mask)))(rounded))
    for half, exact in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(np.asarray(half, np.float32), exact, rtol=0, atol=2**-4 * np.abs(exact).max())


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_lowers_for_other_platforms(platform):
    loss = loss_of(attend, jnp.asarray(MASKS["segments"]))
    lowered = jax.export.export(jax.jit(jax.grad(loss)), platforms=[platform])(inputs())
    assert lowered.platforms == (platform,)
