"""Losses and gradients of the multiset form of a model, against the Flax model on sequences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiejax import models, training
from tiejax.lab.studies.exor.batches import MaskedSequences
from tiejax.lab.studies.exor.multisets import count
from tiejax.models import multiset
from tiejax.models.transformer import ACTIVATIONS

BATCH = 9


@st.composite
def cases(draw):
    """Draw a model, random weights, and random sequences with one mask each."""
    heads = draw(st.sampled_from([1, 2, 3]))
    encoder = models.Transformer(
        layers=draw(st.integers(1, 3)),
        width=heads * draw(st.integers(-(-4 // heads), 5)),  # with fewer than 4 features, LayerNorm leaves almost no gradient
        heads=heads,
        feed_forward=draw(st.integers(1, 9)),
        activation=draw(st.sampled_from(sorted(ACTIVATIONS))),
        identical_layers=draw(st.booleans()),
    )
    vocabulary, length = draw(st.integers(3, 9)), draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Some symbols are frequent, some never occur.
    tokens = rng.choice(vocabulary - 1, size=(BATCH, length), p=rng.dirichlet(np.full(vocabulary - 1, 0.5)))
    position = rng.integers(0, length, BATCH)
    target = tokens[np.arange(BATCH), position]
    tokens[np.arange(BATCH), position] = vocabulary - 1
    batch = MaskedSequences(*(jnp.asarray(part, jnp.int32) for part in (tokens, position, target)))
    return models.LanguageModel(vocabulary, encoder.width, encoder), batch, rng


def random_weights(model, batch, rng, scale=1.0):
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch.tokens, batch.position)["params"])
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def plain_loss(model, params, batch):
    return training.masked_lm_loss(
        lambda params, batch, key: model.apply({"params": params}, batch.tokens, batch.position), params, batch, None
    )


def fast_loss(model, params, batch):
    batch = count(batch, model.vocabulary)
    return training.asked_loss(multiset.logits(model, params, batch.counts, model.vocabulary - 1), batch.asked)


def assert_equal_with_gradients(model, params, batch, tolerance):
    (plain, fast) = (
        jax.jit(jax.value_and_grad(functools.partial(loss, model), has_aux=True))(params, batch)
        for loss in (plain_loss, fast_loss)
    )
    np.testing.assert_allclose(fast[0][0], plain[0][0], rtol=tolerance)
    np.testing.assert_allclose(fast[0][1]["accuracy"], plain[0][1]["accuracy"], rtol=1e-6)
    (_, plain_grads), (_, fast_grads) = plain, fast
    # A leaf's gradient sums terms as large as those of the whole model, which may cancel: rounding scales with the terms.
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(plain_grads))
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(fast_grads), jax.tree.leaves(plain_grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale, err_msg=str(path))


@pytest.mark.slow
@settings(max_examples=5, deadline=None, derandomize=True)
@given(cases())
def test_loss_and_gradients_equal_those_on_sequences(case):
    model, batch, rng = case
    with jax.enable_x64(True):
        assert_equal_with_gradients(model, random_weights(model, batch, rng), batch, 1e-12)


@pytest.mark.slow
@settings(max_examples=3, deadline=None, derandomize=True)
@given(cases())
def test_loss_and_gradients_equal_those_on_sequences_in_float32(case):
    model, batch, rng = case
    assert_equal_with_gradients(model, random_weights(model, batch, rng, scale=0.5), batch, 1e-5)


def test_absent_symbols_with_huge_scores_do_not_underflow(x64):
    """A softmax over all symbols, instead of those that occur, would underflow: scores differ by thousands."""
    model = models.LanguageModel(6, 4, models.Transformer(layers=2, width=4, heads=1, feed_forward=3))
    tokens = jnp.array([[0, 1, 5], [2, 2, 5], [5, 3, 3]], jnp.int32)
    batch = MaskedSequences(tokens, jnp.array([2, 2, 0], jnp.int32), jnp.array([0, 1, 2], jnp.int32))
    params = random_weights(model, batch, np.random.default_rng(3))
    params["embed"]["embedding"] = params["embed"]["embedding"].at[4].mul(1e4)  # symbol 4 never occurs
    found, expected = (jax.jit(functools.partial(loss, model))(params, batch)[0] for loss in (fast_loss, plain_loss))
    assert np.isfinite(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    grads = jax.jit(jax.grad(lambda params: fast_loss(model, params, batch)[0]))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert (np.asarray(grads["embed"]["embedding"][4]) == 0).all()


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        (models.Mixer(1, 3, 3), "the Mixer sees the order"),
        (models.BidirectionalLSTM(1, 4, 3), "the BidirectionalLSTM sees the order"),
        (models.Transformer(1, 4, 1, 3, dropout=0.1), "dropout treats equal symbols differently"),
        (models.Transformer(2, 4, 1, 3, stack_size=1), "owner vector"),
    ],
)
def test_models_that_depend_on_order_are_rejected(encoder, reason):
    with pytest.raises(multiset.NotExact, match=reason):
        multiset.encode(models.LanguageModel(7, 4, encoder), {}, jnp.ones((7, 1)), 6)


ENCODERS = [{"norm_first": True}, {"causal": True}, {"lora_rank": 2}, {"residual_scale": -1.0}, {"norm_epsilon": 0.1}]
MODELS = [
    {"head_activation": "gelu"},
    {"token_types": 2},
    {"projected": True},
    {"embedding_norm": True},
    {"max_positions": 9},
    {"padding": 0},
]


@pytest.mark.parametrize(
    ("of_encoder", "of_model"), [*((one, {}) for one in ENCODERS), *(({}, one) for one in MODELS)], ids=str
)
def test_options_that_are_not_computed_are_rejected(of_encoder, of_model):
    encoder = models.Transformer(1, 4, 1, 3, **of_encoder)
    (name,) = {**of_encoder, **of_model}
    with pytest.raises(multiset.NotExact, match=f"{name}=.* is not supported"):
        multiset.encode(models.LanguageModel(7, 4, encoder, **of_model), {}, jnp.ones((7, 1)), 6)


@pytest.mark.parametrize("terms", [1, 8, 9])
def test_product_by_sums_equals_the_product(x64, terms):
    keys = jax.random.split(jax.random.key(terms), 3)
    matrix, x, seen = (jax.random.normal(key, shape) for key, shape in zip(keys, ((5, terms), (terms, 6), (5, 6)), strict=True))
    value, back = jax.vjp(multiset.product_by_sums, matrix, x)
    np.testing.assert_allclose(value, np.asarray(matrix) @ np.asarray(x), rtol=0, atol=1e-13)
    matrix_grad, x_grad = back(seen)
    np.testing.assert_allclose(matrix_grad, np.asarray(seen) @ np.asarray(x).T, rtol=0, atol=1e-13)
    np.testing.assert_allclose(x_grad, np.asarray(matrix).T @ np.asarray(seen), rtol=0, atol=1e-13)
