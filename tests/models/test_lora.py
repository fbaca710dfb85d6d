"""Low-rank adaptation of shared layers, and the scale of looped layers. The oracle applies the layers in a Python loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models import lora
from tiejax.models.transformer import EncoderLayer, Transformer

LAYERS, WIDTH, OWNER = 4, 8, np.array([0, 1, 0, 1], np.int32)
FULL = 16  # at least the rank of every kernel


def model_of(**options):
    return Transformer(LAYERS, WIDTH, 2, 16, identical_layers=False, norm_first=True, **options)


@pytest.fixture(scope="module")
def states():
    return jax.random.normal(jax.random.key(1), (3, 5, WIDTH))


def drawn(model, x, seed=0):
    """Parameters whose adaptation is random in all its parts."""
    leaves, structure = jax.tree.flatten(jax.jit(model.init)(jax.random.key(seed), x)["params"])
    rng = np.random.default_rng(seed)
    return structure.unflatten([jnp.asarray(np.asarray(leaf) + 0.1 * rng.normal(size=leaf.shape)) for leaf in leaves])


def loop(params, x, owner, power=0.0):
    """Layer i with its own weights, made by hand, and updates times N^power for N layers with one owner."""
    layer = EncoderLayer(WIDTH, 2, 16, "gelu", 0.0, norm_first=True)
    for number, source in enumerate(owner):
        weights = jax.tree.map(lambda leaf, source=source: leaf[source], params["layers"])
        for name, change in params.get("lora", {}).items():
            for kind, values in change.items():
                own = values["a"][number] @ values["b"][number] if kind == "kernel" else values[number]
                weights[name][kind] = weights[name][kind] + own
        scale = jnp.asarray(float(sum(owner == source)) ** power)
        x = layer.apply({"params": weights}, x, scale=scale)
    final = params["final_norm"]
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * final["scale"] + final["bias"]


@pytest.mark.slow
@pytest.mark.parametrize("rematerialise", [False, True])
@pytest.mark.parametrize("options", [{"lora_rank": 3}, {"residual_scale": -1.0}, {"lora_rank": 2, "residual_scale": -0.5}])
def test_values_and_gradients_equal_the_loop(states, rematerialise, options):
    model = model_of(rematerialise=rematerialise, **options)
    params = drawn(model, states)

    def summed(forward):
        return jax.jit(jax.value_and_grad(lambda params: jnp.sum(jnp.sin(forward(params)))))

    value, grads = summed(lambda params: model.apply({"params": params}, states, OWNER))(params)
    wanted, wanted_grads = summed(lambda params: loop(params, states, OWNER, options.get("residual_scale", 0.0)))(params)
    np.testing.assert_allclose(value, wanted, atol=1e-5)  # a sum of 120 sines
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5), grads, wanted_grads)


def test_an_initial_adaptation_changes_no_bit(states):
    plain, adapted = model_of(rematerialise=True), model_of(rematerialise=True, lora_rank=3)
    params = jax.jit(adapted.init)(jax.random.key(0), states)["params"]
    without = {name: tree for name, tree in params.items() if name != "lora"}
    one, other = (jax.jit(lambda p, model=model: model.apply({"params": p}, states, OWNER))(p)
                  for model, p in ((adapted, params), (plain, without)))  # fmt: skip
    np.testing.assert_array_equal(one, other)
    sizes = {name: leaf["kernel"]["a"].shape for name, leaf in params["lora"].items() if "kernel" in leaf}
    assert sizes == {"qkv": (4, 8, 3), "out": (4, 8, 3), "feed_forward_in": (4, 8, 3), "feed_forward_out": (4, 16, 3)}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.float64, 1e-12)])
def test_full_rank_reproduces_separate_layers(states, dtype, tolerance):
    params = drawn(model_of(), states)
    with jax.enable_x64(dtype == jnp.float64):
        x, params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (states, params))
        shared, adaptation = lora.from_layers(params["layers"], OWNER, FULL)
        free = model_of().apply({"params": params}, x)
        tied = {**params, "layers": shared, "lora": adaptation}
        again = model_of(lora_rank=FULL).apply({"params": tied}, x, OWNER)
        assert again.dtype == dtype
        np.testing.assert_allclose(again, free, atol=tolerance, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 3, 8])
def test_conversion_is_the_closest_of_its_rank(states, rank):
    """The mean of the layers that share, and of the rest all singular values but the largest `rank` are lost."""
    stack = drawn(model_of(), states)["layers"]
    shared, adaptation = lora.from_layers(stack, OWNER, rank)
    kernel = np.asarray(stack["feed_forward_in"]["kernel"])  # [4, 8, 16]
    means = np.stack([kernel[[0, 2]].mean(0), kernel[[1, 3]].mean(0)])
    np.testing.assert_allclose(shared["feed_forward_in"]["kernel"], means, rtol=1e-6)
    if not rank:
        assert adaptation is None
        return
    for layer in range(LAYERS):
        left = kernel[layer] - means[OWNER[layer]]
        parts = adaptation["feed_forward_in"]["kernel"]
        lost = np.linalg.norm(left - parts["a"][layer] @ parts["b"][layer])
        np.testing.assert_allclose(lost, np.sqrt(np.sum(np.linalg.svd(left)[1][rank:] ** 2)), atol=1e-5)
        mean, change, own = (tree["feed_forward_in"]["bias"] for tree in (shared, adaptation, stack))
        np.testing.assert_allclose(mean[OWNER[layer]] + change[layer], own[layer], atol=1e-6)
