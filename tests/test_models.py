"""The masked language models: sizes, initial values, options, and what they can know of positions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from scipy import stats

from tiejax import tying
from tiejax.models import BidirectionalLSTM, Mixer, Transformer
from tiejax.models import features_first as columns
from tiejax.models.transformer import ACTIVATIONS


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_parameter_counts(name):
    model = published.build(published.PUBLISHED[name])
    shapes = jax.eval_shape(lambda: published.init(model, jax.random.key(0)))
    untied, tied = (
        sum(leaf.size for leaf in jax.tree.leaves(params)) for params in (shapes, tying.store(shapes, published.TIES))
    )
    assert (untied, tied) == published.COUNTS[name]


# Initial values. Expected distributions by the end of a leaf's path, with width 6 and every other size different:
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
    """Initial values under many keys, by path, [draws, ...]."""
    case = published.CASES[name]
    model = published.build(case._replace(settings=case.settings | changes))
    return published.by_path(published.draws(model, published.DRAWS))


@pytest.mark.parametrize("name", EXPECTED)
def test_initial_values_follow_the_formulae(name):
    for path, leaf in draw_many(name).items():
        (expected,) = (value for end, value in EXPECTED[name].items() if path.endswith(end))
        # Layers of a stack are copies (next test): one of them is the sample.
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


def test_layers_of_a_transformer_start_as_copies_unless_asked_otherwise():
    for path, leaf in draw_many("transformer_relu_2_heads").items():
        if "/layers/" in path:
            assert (leaf == leaf[:, :1]).all(), path
    for path, leaf in draw_many("transformer_relu_2_heads", identical_layers=False).items():
        if "kernel" in path:
            assert (leaf[:, 0] != leaf[:, 1]).any(axis=(1, 2)).all(), path


def test_parameters_take_the_float_type_that_is_on():
    model = published.build(published.PUBLISHED["lstm_small"])
    for wide, dtype in ((False, jnp.float32), (True, jnp.float64)):
        with jax.enable_x64(wide):
            shapes = jax.eval_shape(lambda: published.init(model, jax.random.key(0)))
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(dtype)}


# Options.


def test_activations_are_those_they_are_called(x64):
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


def bits(number):
    """Masked sequences as the task has them: the mask at position 3, parity last."""
    tokens = np.random.default_rng(5).integers(0, 4, (number, LENGTH), dtype=np.int32)
    tokens[:, 3], tokens[:, -1] = 6, 4 + np.arange(number) % 2
    return tokens


@functools.cache
def forward(model, deterministic):
    @jax.jit
    def apply(params, tokens, position, key):
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, tokens, position, deterministic=deterministic, rngs=rngs)

    return apply


def predict(model, params, tokens, position=3, deterministic=True, key=None):
    return forward(model, deterministic)(params, tokens, np.full(len(tokens), position, np.int32), key)


def dropout_key(seed):
    """A key of a generator that compiles in a third of the default's time; how masks are drawn is not what is tested."""
    return jax.random.key(seed, impl="rbg")


def with_dropout(name, rate, **changes):
    case = published.CASES[name]
    return published.build(case._replace(settings=case.settings | {"dropout": rate} | changes))


@pytest.mark.parametrize("name", EXPECTED)
def test_dropout_acts_in_training_alone_and_follows_its_key(name):
    model, plain = with_dropout(name, 0.5), with_dropout(name, 0.0)
    params = published.weights(plain, np.float32)
    tokens = bits(4)

    def dropped(seed):
        return predict(model, params, tokens, deterministic=False, key=dropout_key(seed))

    assert jnp.array_equal(predict(model, params, tokens), predict(plain, params, tokens))
    assert jnp.array_equal(dropped(0), dropped(0))
    assert jnp.abs(dropped(0) - dropped(1)).max() > 0.01
    assert jnp.abs(dropped(0) - predict(plain, params, tokens)).max() > 0.01


def test_dropout_between_lstm_layers_only():
    """As torch's: the output of the last layer is not dropped, so a single layer drops nothing."""
    model = with_dropout("lstm_uneven", 0.5, layers=1)
    params = published.weights(model, np.float32)
    dropped = predict(model, params, bits(4), deterministic=False, key=dropout_key(0))
    assert jnp.array_equal(dropped, predict(model, params, bits(4)))


def test_dropout_preserves_the_mean():
    """With its channel mixing shut off, a one-layer mixer is linear in its dropout masks: the mean is then exact."""
    model = with_dropout("mixer_gelu", 0.3, layers=1)
    params = published.weights(model, np.float32)
    shut = params["encoder"]["layer_0"]["channel_out"]
    shut["kernel"], shut["bias"] = np.zeros_like(shut["kernel"]), np.zeros_like(shut["bias"])

    keys = jax.random.split(dropout_key(0), 4000)
    draws = jax.lax.map(lambda key: predict(model, params, bits(4), deterministic=False, key=key), keys)
    draws = np.asarray(draws, np.float64)
    error = draws.std(0) / math.sqrt(len(draws))
    assert (error > 1e-3).all()
    assert (np.abs(draws.mean(0) - np.asarray(predict(model, params, bits(4)))) < 5 * error).all()


# Positions.


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_only_the_transformer_is_blind_to_order(x64, name):
    model = published.build(published.PUBLISHED[name])
    tokens = bits(8)

    def logits_at_mask(order):
        logits = published.logits_everywhere(model, published.weights(model), tokens[:, order])
        return logits[:, order.index(3)]

    plain = logits_at_mask([0, 1, 2, 3, 4, 5, 6, 7])
    permuted = logits_at_mask([6, 0, 7, 3, 2, 5, 1, 4])  # the mask stays where it is, everything else moves
    if name.startswith("transformer"):
        assert published.difference(permuted, plain) < 1e-12
        # The mask may move as well, as it does where contexts are counted as multisets.
        assert published.difference(logits_at_mask([3, 0, 1, 2, 4, 5, 6, 7]), plain) < 1e-12
    else:
        assert published.difference(permuted, plain) > 1e-2


ENCODERS = {
    "transformer": Transformer(layers=2, width=6, heads=2, feed_forward=5),
    "rematerialised": Transformer(layers=3, width=6, heads=2, feed_forward=5, rematerialise=True),
    "lstm": BidirectionalLSTM(layers=2, width=6, hidden=5),
    "one direction": BidirectionalLSTM(layers=1, width=6, hidden=5, bidirectional=False),
    "mixer": Mixer(layers=2, token_hidden=5, channel_hidden=7),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_the_state_at_one_position_is_that_of_the_whole_sequence(name):
    """And so is its gradient: the last layer alone does less."""
    encoder, rng = ENCODERS[name], np.random.default_rng(4)
    x, position = jnp.asarray(rng.normal(size=(9, 4, 6)), jnp.float32), jnp.asarray(rng.integers(0, 4, 9), jnp.int32)
    params = jax.jit(encoder.init)(jax.random.key(1), x)
    probe = jnp.asarray(rng.normal(size=(9, 6)), jnp.float32)

    def whole(params):
        return jnp.sum(probe * encoder.apply(params, x)[jnp.arange(9), position])

    def one(params):
        return jnp.sum(probe * encoder.apply(params, x, position=position))

    (expected, grads), (found, ours) = (jax.jit(jax.value_and_grad(loss))(params) for loss in (whole, one))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale), ours, grads)


@pytest.mark.parametrize("vocabulary", [7, columns.SMALL_TABLE, columns.SMALL_TABLE + 1])
def test_a_lookup_reads_rows(vocabulary):
    rng = np.random.default_rng(0)
    table, tokens = rng.normal(size=(vocabulary, 3)).astype(np.float32), rng.integers(0, vocabulary, (4, 5)).astype(np.int32)
    np.testing.assert_array_equal(columns.lookup(jnp.asarray(table), jnp.asarray(tokens)), table[tokens])
