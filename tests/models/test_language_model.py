"""Masked language models: sizes, dropout, and dependence on positions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest

from tiejax import tying
from tiejax.models import BidirectionalLSTM, LanguageModel, Mixer, Transformer

LENGTH = 8
ARCHITECTURES = ("transformer_relu_2_heads", "lstm_uneven", "mixer_gelu")  # one of each architecture


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_parameter_counts(name):
    model = published.build(published.PUBLISHED[name])
    shapes = jax.eval_shape(lambda: published.init(model, jax.random.key(0)))
    untied, tied = (
        sum(leaf.size for leaf in jax.tree.leaves(params)) for params in (shapes, tying.store(shapes, published.TIES))
    )
    assert (untied, tied) == published.COUNTS[name]


def bits(number):
    """Return masked sequences of the task, with the mask at position 3 and the parity last."""
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
    """Return a key of a generator that compiles in a third of the default's time."""
    return jax.random.key(seed, impl="rbg")


def with_dropout(name, rate, **changes):
    case = published.CASES[name]
    return published.build(case._replace(settings=case.settings | {"dropout": rate} | changes))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_dropout_acts_only_in_training_and_follows_its_key(name):
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
    """As in torch, the output of the last layer is not dropped, so a single layer drops nothing."""
    model = with_dropout("lstm_uneven", 0.5, layers=1)
    params = published.weights(model, np.float32)
    dropped = predict(model, params, bits(4), deterministic=False, key=dropout_key(0))
    assert jnp.array_equal(dropped, predict(model, params, bits(4)))


def test_dropout_preserves_the_mean():
    """Without channel mixing, a one-layer mixer is linear in its dropout masks, so the mean is exact."""
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


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_only_the_transformer_ignores_order(x64, name):
    model = published.build(published.PUBLISHED[name])
    tokens = bits(8)

    def logits_at_mask(order):
        logits = published.logits_everywhere(model, published.weights(model), tokens[:, order])
        return logits[:, order.index(3)]

    plain = logits_at_mask([0, 1, 2, 3, 4, 5, 6, 7])
    permuted = logits_at_mask([6, 0, 7, 3, 2, 5, 1, 4])  # the mask stays in place, all other tokens move
    if name.startswith("transformer"):
        assert published.difference(permuted, plain) < 1e-12
        # The mask may move as well, as in the multiset form.
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_state_at_one_position_equals_that_of_the_whole_sequence(name):
    """And so does its gradient; only the last layer computes less."""
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


def test_rows_longer_than_the_positions_are_refused():
    model = LanguageModel(6, 4, Transformer(1, 4, 1, 4), max_positions=2)
    with pytest.raises(ValueError, match="tokens: rows of 3 tokens, but the model has 2 positions"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 3), jnp.int32))


def test_one_position_and_every_layer_exclude_each_other():
    model = LanguageModel(6, 4, Transformer(1, 4, 1, 4))
    tokens = jnp.zeros((2, 3), jnp.int32)
    options = {"position": jnp.array([1, 2]), "every_layer": True, "method": "encode"}
    with pytest.raises(ValueError, match="every_layer: returns all positions"):
        jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, **options))


@pytest.mark.parametrize("encoder", [BidirectionalLSTM(1, 4, 4), Mixer(1, 3, 4)])
def test_another_dtype_needs_a_transformer(encoder):
    with pytest.raises(ValueError, match=f"dtype: a {type(encoder).__name__} computes in the dtype of its parameters"):
        LanguageModel(6, 4, encoder, dtype=jnp.bfloat16).init(jax.random.key(0), jnp.zeros((1, 3), jnp.int32))
