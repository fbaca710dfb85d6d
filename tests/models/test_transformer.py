"""The stack of layers with an owner vector. The oracle applies the layers in a Python loop."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.models.transformer import ACTIVATIONS, EncoderLayer, Transformer
from tiejax.tying import check_owner, independent, sends_gradient

LAYERS = 4


def stack(rematerialise, identical=False):
    model = Transformer(LAYERS, 8, 2, 16, identical_layers=identical, rematerialise=rematerialise)
    x = jax.random.normal(jax.random.key(1), (3, 5, 8))
    return model, jax.jit(model.init)(jax.random.key(0), x)["params"], x


def loop(params, x, owner):
    """Apply the layers one by one, each with its owner's weights."""
    layer = EncoderLayer(8, 2, 16, "gelu", 0.0)
    for source in owner:
        weights = jax.tree.map(lambda leaf, source=source: leaf[source], params["layers"])
        x = layer.apply({"params": weights}, x, deterministic=True)
    return x


def jitted_loop(params, x, owner):
    return jax.jit(lambda params: loop(params, x, owner))(params)


def loss_of(forward, x):
    return lambda params: jnp.sum(jnp.sin(forward(params, x)))


def largest_difference(one, other):
    pairs = zip(jax.tree.leaves(jax.device_get(one)), jax.tree.leaves(jax.device_get(other)), strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)) for a, b in pairs)


def train(loss, params, steps=100):
    optimizer = optax.adamw(1e-3)

    @jax.jit
    def step(carry):
        params, opt_state = carry
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    carry = params, optimizer.init(params)
    for _ in range(steps):
        carry = step(carry)
    return carry[0]


def without_key_bias(params):
    """Leave out the key bias: its exact gradient is zero, and AdamW turns rounding errors into steps."""
    qkv = params["layers"]["qkv"]
    return {"layers": params["layers"] | {"qkv": qkv | {"bias": jnp.delete(qkv["bias"], np.s_[8:16], axis=-1)}}}


@functools.cache
def trained_by_loop():
    """Return the oracle in float64, compiled once for all forms of the model."""
    _, params, x = stack(rematerialise=False)
    return train(loss_of(lambda p, x: loop(p, x, range(LAYERS)), x), params)


@functools.cache
def gradients_by_use(owner):
    """Return the gradient of the loop for weights copied to every layer: one gradient per use."""
    _, params, x = stack(rematerialise=False)
    copied = jax.tree.map(lambda leaf: leaf[np.array(owner)], params)
    return jax.device_get(jax.jit(jax.grad(loss_of(lambda p, x: loop(p, x, range(LAYERS)), x)))(copied))


@pytest.mark.slow
@pytest.mark.parametrize("rematerialise", [False, True])
def test_owner_arange_equals_the_plain_model_over_100_steps(x64, rematerialise):
    model, params, x = stack(rematerialise)
    owned = train(loss_of(lambda p, x: model.apply({"params": p}, x, independent(LAYERS)), x), params)
    assert largest_difference(without_key_bias(owned), without_key_bias(trained_by_loop())) < 1e-12


def test_owner_arange_equals_the_plain_model_in_float32():
    model, params, x = stack(rematerialise=True)
    owned = jax.jit(model.apply)({"params": params}, x, independent(LAYERS))
    np.testing.assert_allclose(owned, jitted_loop(params, x, range(LAYERS)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rematerialise", [pytest.param(False, marks=pytest.mark.slow), True])
def test_gradient_of_an_owner_is_the_sum_over_its_uses(x64, rematerialise):
    model, params, x = stack(rematerialise)
    owner = check_owner([0, 0, 2, 0])
    tied = jax.jit(jax.grad(loss_of(lambda p, x: model.apply({"params": p}, x, owner), x)))(params)
    by_use = gradients_by_use(tuple(owner.tolist()))
    expected = jax.tree.map(
        lambda leaf: np.stack([leaf[0] + leaf[1] + leaf[3], np.zeros_like(leaf[0]), leaf[2], np.zeros_like(leaf[0])]), by_use
    )
    assert largest_difference(tied, expected) < 1e-12

    sends = jnp.asarray(sends_gradient(owner, "owner"))
    first = jax.jit(jax.grad(loss_of(lambda p, x: model.apply({"params": p}, x, owner, sends), x)))(params)
    expected = jax.tree.map(lambda leaf: leaf * np.array([1, 0, 1, 0]).reshape(-1, *[1] * (leaf.ndim - 1)), by_use)
    assert largest_difference(first, expected) < 1e-12


def test_changing_owners_does_not_recompile():
    model, params, x = stack(rematerialise=True)
    traced = 0

    @jax.jit
    def forward(owner):
        nonlocal traced
        traced += 1
        return model.apply({"params": params}, x, owner)

    outputs = [forward(check_owner(owner)) for owner in ([0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 1, 0])]
    assert traced == 1
    for output, owner in zip(outputs, ([0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 1, 0]), strict=True):
        np.testing.assert_allclose(output, jitted_loop(params, x, owner), rtol=0, atol=1e-5)


def test_numpy_parameters_of_a_checkpoint():
    model, params, x = stack(rematerialise=True)
    found = model.apply({"params": jax.tree.map(np.asarray, params)}, x, check_owner([0, 0, 2, 2]))
    np.testing.assert_allclose(found, jitted_loop(params, x, [0, 0, 2, 2]), rtol=0, atol=1e-5)


def test_stacks_of_any_size():
    model = Transformer(LAYERS, 8, 2, 16, stack_size=2, identical_layers=False)
    x = jax.random.normal(jax.random.key(1), (3, 5, 8))
    owner = jnp.array([0, 1, 1, 0], jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), x, owner)["params"]
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params)} == {2}
    found = jax.jit(model.apply)({"params": params}, x, owner)
    np.testing.assert_allclose(found, jitted_loop(params, x, owner.tolist()), rtol=0, atol=1e-5)


def test_activations_by_name(x64):
    x = np.linspace(-4, 4, 33)
    expected = {
        "gelu": [v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x],
        "gelu_tanh": [v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x],
        "relu": [max(v, 0) for v in x],
        "silu": [v / (1 + math.exp(-v)) for v in x],
        "tanh": [math.tanh(v) for v in x],
    }
    assert expected.keys() == ACTIVATIONS.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x)), values, rtol=1e-13, atol=1e-15, err_msg=name)
