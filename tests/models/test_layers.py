"""Initial values of the published models, against the distributions of torch."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from scipy import stats

from tiejax.models.layers import Dense, default_dtype

# Expected distributions by the last parts of a leaf's path, with width 6 and all other sizes different:
# a number is the bound of a uniform distribution, "normal" is N(0, 1), "zero" and "one" are constants.
WIDTH, LENGTH, HIDDEN, FEED_FORWARD, TOKEN, CHANNEL = 6, 8, 5, 10, 9, 12
EMBEDDINGS = {"embed/embedding": "normal", "head/embedding": "normal"}
NORM = {"norm/scale": "one", "norm/bias": "zero"}
EXPECTED = {
    "transformer_relu_2_heads": {
        "qkv/kernel": math.sqrt(6 / (WIDTH + 3 * WIDTH)),
        "qkv/bias": "zero",
        "/out/kernel": 1 / math.sqrt(WIDTH),
        "/out/bias": "zero",
        "feed_forward_in/kernel": 1 / math.sqrt(WIDTH),
        "feed_forward_in/bias": 1 / math.sqrt(WIDTH),
        "feed_forward_out/kernel": 1 / math.sqrt(FEED_FORWARD),
        "feed_forward_out/bias": 1 / math.sqrt(FEED_FORWARD),
        **NORM,
        **EMBEDDINGS,
    },
    "lstm_uneven": {
        "input_kernel": 1 / math.sqrt(HIDDEN),
        "hidden_kernel": 1 / math.sqrt(HIDDEN),
        "input_bias": 1 / math.sqrt(HIDDEN),
        "hidden_bias": 1 / math.sqrt(HIDDEN),
        "projection/kernel": 1 / math.sqrt(2 * HIDDEN),
        "projection/bias": 1 / math.sqrt(2 * HIDDEN),
        **EMBEDDINGS,
    },
    "mixer_gelu": {
        "token_in/kernel": 1 / math.sqrt(LENGTH),
        "token_in/bias": 1 / math.sqrt(LENGTH),
        "token_out/kernel": 1 / math.sqrt(TOKEN),
        "token_out/bias": 1 / math.sqrt(TOKEN),
        "channel_in/kernel": 1 / math.sqrt(WIDTH),
        "channel_in/bias": 1 / math.sqrt(WIDTH),
        "channel_out/kernel": 1 / math.sqrt(CHANNEL),
        "channel_out/bias": 1 / math.sqrt(CHANNEL),
        **NORM,
        **EMBEDDINGS,
    },
}


def draw_many(name, **changes):
    """Return initial values for many keys, by path, [draws, ...]."""
    case = published.CASES[name]
    model = published.build(case._replace(settings=case.settings | changes))
    return published.by_path(published.draws(model, published.DRAWS))


@pytest.mark.parametrize("name", EXPECTED)
def test_initial_values_follow_their_distributions(name):
    for path, leaf in draw_many(name).items():
        (expected,) = (value for end, value in EXPECTED[name].items() if path.endswith(end))
        # The layers of a stack are copies (see the next test), so one of them is the sample.
        sample = (leaf[:, 0] if "/layers/" in path else leaf).ravel()
        if expected in ("zero", "one"):
            assert (sample == (expected == "one")).all(), path
        elif expected == "normal":
            assert stats.kstest(sample, "norm").pvalue > 1e-5, path
        else:
            # float32 may round a draw onto the bound. With n draws, missing the last 20/n has a chance of e^-20.
            assert expected * (1 - 20 / sample.size) < np.abs(sample).max() <= expected * (1 + 1e-6), path
            assert stats.kstest(sample, "uniform", (-expected, 2 * expected)).pvalue > 1e-5, path


@pytest.mark.parametrize("name", EXPECTED)
def test_leaves_and_layers_are_drawn_independently(name):
    """A key used twice would correlate leaves of one shape, such as the two tables or the biases of two layers."""
    changes = {"identical_layers": False} if name.startswith("transformer") else {}
    samples = {}
    for path, leaf in draw_many(name, **changes).items():
        for layer, value in enumerate(np.moveaxis(leaf, 1, 0)) if "/layers/" in path else [(0, leaf)]:
            if value.std() > 0:
                samples[path, layer] = value
    compared = 0
    for one, first in samples.items():
        for other, second in samples.items():
            if one < other and first.shape == second.shape:
                correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
                assert abs(correlation) < 5 / math.sqrt(first.size), (one, other)
                compared += 1
    assert compared > 5


def test_layers_of_a_transformer_start_as_copies_by_default():
    for path, leaf in draw_many("transformer_relu_2_heads").items():
        if "/layers/" in path:
            assert (leaf == leaf[:, :1]).all(), path
    for path, leaf in draw_many("transformer_relu_2_heads", identical_layers=False).items():
        if "kernel" in path:
            assert (leaf[:, 0] != leaf[:, 1]).any(axis=(1, 2)).all(), path


def test_parameters_have_the_default_float_dtype():
    model = published.build(published.PUBLISHED["lstm_small"])
    for wide, dtype in ((False, jnp.float32), (True, jnp.float64)):
        with jax.enable_x64(wide):
            shapes = jax.eval_shape(lambda: published.init(model, jax.random.key(0)))
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 2, 3, 5)])
def test_linear_map_equals_that_of_flax(x64, shape):
    """Initial values, results and gradients, for any leading shape."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape))
    init = jax.nn.initializers.normal(0.3)
    ours, theirs = (kind(4, kernel_init=init, bias_init=init, param_dtype=default_dtype()) for kind in (Dense, nn.Dense))
    params = ours.init(jax.random.key(1), x)
    jax.tree.map(np.testing.assert_array_equal, params, theirs.init(jax.random.key(1), x))

    def loss(model):
        return lambda params, x: jnp.sum(jnp.sin(model.apply(params, x)))

    found, expected = (jax.value_and_grad(loss(model), (0, 1))(params, x) for model in (ours, theirs))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-13), found, expected)


def test_linear_map_computes_in_the_given_dtype():
    x = jnp.ones((2, 3))
    model = Dense(4, kernel_init=jax.nn.initializers.ones, dtype=jnp.bfloat16)
    params = model.init(jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert model.apply(params, x).dtype == jnp.bfloat16
