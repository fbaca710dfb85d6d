"""LayerNorm and its derivative, against Flax and against the formula."""

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models.layers import default_dtype, layer_norm, normalise

SHAPE, EPSILON = (3, 4, 5), 1e-3
AXES = [-1, 0, 1]


def inputs(axis, dtype=None):
    """Return x with a mean far from 0, scale and bias."""
    rng = np.random.default_rng(3)
    size = SHAPE[axis]
    arrays = 3 + 2 * rng.standard_normal(SHAPE), 1 + rng.standard_normal(size), rng.standard_normal(size)
    return tuple(jnp.asarray(array, dtype) for array in arrays)


def theirs(axis, dtype=None):
    return nn.LayerNorm(
        EPSILON, dtype, default_dtype(), use_fast_variance=False, reduction_axes=axis, feature_axes=axis, name="norm"
    )


def loss_of(normal, axis):
    """Return a loss that depends on every output differently."""

    def loss(inputs):
        y = normal(*inputs, axis, EPSILON)
        return jnp.sum(jnp.sin(y + jnp.arange(y.size).reshape(y.shape)))

    return loss


def flax_normalise(x, scale, bias, axis, epsilon):
    return theirs(axis).apply({"params": {"scale": scale, "bias": bias}}, x)


@pytest.mark.parametrize("axis", AXES)
def test_values_and_gradients_match_the_formula(x64, axis):
    given = inputs(axis)
    x, scale, bias = map(np.asarray, given)
    along = [1] * 3
    along[axis] = -1
    normal = (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + EPSILON)
    y = normal * scale.reshape(along) + bias.reshape(along)
    np.testing.assert_allclose(normalise(*given, axis, EPSILON), y, rtol=0, atol=1e-13)
    found, expected = (jax.jit(jax.value_and_grad(loss_of(each, axis)))(given) for each in (normalise, flax_normalise))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-12), found, expected)


@pytest.mark.parametrize("axis", AXES)
def test_gradient_by_finite_differences(x64, axis):
    given, step, rng = inputs(axis), 1e-5, np.random.default_rng(0)
    loss = loss_of(normalise, axis)
    gradient = jax.grad(loss)(given)
    along = tuple(jnp.asarray(rng.standard_normal(leaf.shape)) for leaf in given)
    moved = [loss(tuple(x + sign * step * d for x, d in zip(given, along, strict=True))) for sign in (1, -1)]
    slope = sum(jnp.sum(g * d) for g, d in zip(gradient, along, strict=True))
    np.testing.assert_allclose((moved[0] - moved[1]) / (2 * step), slope, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("axis", AXES)
def test_vmap_and_rematerialisation_do_not_change_results(x64, axis):
    loss = loss_of(normalise, axis)
    members = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, leaf**2]), inputs(axis))
    found = jax.vmap(jax.grad(loss))(members)
    _, scanned = jax.lax.scan(lambda carry, member: (carry, jax.grad(jax.checkpoint(loss))(member)), 0, members)
    for member in range(3):
        alone = jax.grad(loss)(jax.tree.map(lambda leaf, member=member: leaf[member], members))
        for one, other, third in zip(alone, found, scanned, strict=True):
            np.testing.assert_allclose(other[member], one, rtol=0, atol=1e-12)
            np.testing.assert_allclose(third[member], one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_module_has_the_parameters_and_dtypes_of_flax(axis, dtype):
    x = inputs(axis, dtype)[0]
    ours = layer_norm("norm", axis, dtype, EPSILON)
    params = ours.init(jax.random.key(0), x)
    expected = theirs(axis, dtype).init(jax.random.key(0), x)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    found, other = ours.apply(params, x), theirs(axis, dtype).apply(expected, x)
    assert found.dtype == other.dtype == (dtype or jnp.float32)
    # Both sum in float32 and differ in the last place only.
    np.testing.assert_allclose(found.astype(jnp.float32), other.astype(jnp.float32), rtol=0, atol=2**-6 if dtype else 1e-5)
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(ours.apply(params, x).astype(jnp.float32))))(x)
    assert gradient.dtype == x.dtype


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_lowers_for_other_platforms(platform):
    lowered = jax.export.export(jax.jit(jax.grad(loss_of(normalise, -1))), platforms=[platform])(inputs(-1))
    assert lowered.platforms == (platform,)
