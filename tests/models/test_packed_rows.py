"""The masked language model on packed rows of several sentences, and the options of the encoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import models
from tiejax.models.language_model import restarting_positions

VOCABULARY, WIDTH, LENGTH = 40, 8, 24
SENTENCES = [4, 9, 9, 24, 4, 9, 9]  # few lengths, since each is compiled separately
ROWS = [[0, 1, 2], [3], [4, 5, 6]]
OPTIONS = {
    "published": {},
    "positions": {"max_positions": LENGTH},
    "pre": {"norm_first": True},
    "pre, positions, rematerialised": {"norm_first": True, "max_positions": LENGTH, "rematerialise": True},
}


def build(norm_first=False, rematerialise=False, dropout=0.0, dtype=None, **fields):
    encoder = models.Transformer(
        2,
        WIDTH,
        2,
        16,
        dropout=dropout,
        identical_layers=False,
        norm_first=norm_first,
        rematerialise=rematerialise,
        dtype=dtype,
    )
    return models.LanguageModel(VOCABULARY, WIDTH, encoder, embedding_std=0.3, padding=0, dtype=dtype, **fields)


def weights(model, seed=0):
    """Return random weights, norms and biases included, so that no 0 or 1 hides an error."""
    params = jax.jit(model.init)(jax.random.key(seed), jnp.zeros((1, LENGTH), jnp.int32))["params"]
    leaves, treedef = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return treedef.unflatten([jnp.asarray(np.asarray(leaf) + 0.2 * rng.standard_normal(leaf.shape)) for leaf in leaves])


def packed():
    """Return rows of several sentences, and the same sentences each in a row of its length."""
    rng = np.random.default_rng(1)
    sentences = [rng.integers(1, VOCABULARY, length, dtype=np.int32) for length in SENTENCES]
    tokens, segments = np.zeros((len(ROWS), LENGTH), np.int32), np.zeros((len(ROWS), LENGTH), np.int32)
    for row, members in enumerate(ROWS):
        at = 0
        for number, sentence in enumerate(members, 1):
            tokens[row, at : at + SENTENCES[sentence]] = sentences[sentence]
            segments[row, at : at + SENTENCES[sentence]] = number
            at += SENTENCES[sentence]
    return jnp.asarray(tokens), jnp.asarray(segments), [jnp.asarray(one) for one in sentences]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_packed_sentences_are_encoded_as_if_alone(x64, options):
    model = build(**OPTIONS[options])
    params = weights(model)
    tokens, segments, sentences = packed()
    alone_in_a_row = jax.jit(lambda tokens: model.apply({"params": params}, tokens, method="encode"))
    encoded = jax.jit(lambda: model.apply({"params": params}, tokens, None, segments, method="encode"))()
    for row, members in enumerate(ROWS):
        for number, sentence in enumerate(members, 1):
            alone = alone_in_a_row(sentences[sentence][None])[0]
            np.testing.assert_allclose(encoded[row][segments[row] == number], alone, rtol=0, atol=1e-12)
    # The result would differ if segments were ignored.
    unaware = alone_in_a_row(tokens)
    assert np.abs(np.asarray(unaware - encoded))[0].max() > 1e-3


def test_positions_restart_in_every_segment():
    segments = np.array([[1, 1, 1, 2, 2, 3, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(
        restarting_positions(jnp.asarray(segments)), [[0, 1, 2, 0, 1, 0, 0, 1], [0, 0, 1, 2, 3, 4, 5, 6]]
    )


@pytest.mark.slow
def test_rows_longer_than_the_positions(x64):
    """Padding has no positions of its own, and a sentence that has too few of them is refused."""
    sentences = [jnp.array([[5, 6, 7]]), jnp.array([[8, 9]])]
    tokens, segments = jnp.array([[5, 6, 7, 8, 9, 0, 0, 0, 0]]), jnp.array([[1, 1, 1, 2, 2, 0, 0, 0, 0]])
    model = build(max_positions=3)
    params = weights(build(max_positions=LENGTH))
    params["positions"]["embedding"] = params["positions"]["embedding"][:3]
    encoded = model.apply({"params": params}, tokens, None, segments, method="encode")
    alone = [model.apply({"params": params}, one, method="encode")[0] for one in sentences]
    np.testing.assert_allclose(encoded[0, :5], np.concatenate(alone), rtol=0, atol=1e-12)
    assert np.isfinite(encoded).all()
    with pytest.raises(ValueError, match=r"^segments: a segment of 4 tokens, but the model has 3 positions"):
        model.apply({"params": params}, tokens, None, jnp.array([[1, 1, 1, 1, 2, 0, 0, 0, 0]]), method="encode")
    with pytest.raises(ValueError, match=r"^tokens: rows of 9 tokens, but the model has 3 positions"):
        model.apply({"params": params}, tokens, method="encode")


@pytest.mark.slow
def test_only_learned_positions_see_the_order(x64):
    _, _, sentences = packed()
    sentence, turned = sentences[1][None], sentences[1][::-1][None]
    for options, sees in (("published", False), ("positions", True)):
        model = build(**OPTIONS[options])
        params = weights(model)
        encode = jax.jit(lambda tokens, model=model, params=params: model.apply({"params": params}, tokens, method="encode"))
        one, other = encode(sentence), encode(turned)[:, ::-1]
        assert (float(jnp.abs(one - other).max()) > 1e-3) == sees


@pytest.mark.slow
def test_rematerialisation_does_not_change_gradients(x64):
    tokens, segments, _ = packed()
    found = []
    for rematerialise in (False, True):
        model = build(rematerialise=rematerialise)
        params = weights(model)

        def loss(params, model=model):
            return jnp.sum(jnp.sin(model.apply({"params": params}, tokens, None, segments, method="encode")))

        found.append(jax.jit(jax.grad(loss))(params))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-12), *found)


@pytest.mark.slow
def test_half_precision_computes_in_it_with_float32_parameters():
    tokens, segments, _ = packed()
    exact, half = build(), build(dtype=jnp.bfloat16)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights(exact))
    drawn = jax.jit(half.init)(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))["params"]
    assert {leaf.dtype for leaf in jax.tree.leaves(drawn)} == {jnp.dtype("float32")}
    one, other = jax.jit(
        lambda: tuple(model.apply({"params": params}, tokens, None, segments, method="encode") for model in (exact, half))
    )()
    assert other.dtype == jnp.bfloat16
    # bfloat16 has 8 bits: after two layers of products, values agree to a few percent, but not to float32 precision.
    error = float(jnp.abs(one - other).max() / jnp.abs(one).max())
    assert 1e-4 < error < 0.05


@pytest.mark.slow
def test_dropout_drops_only_in_training():
    tokens, segments, _ = packed()
    model, without = build(dropout=0.5), build()
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights(without))

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def encode(model, deterministic, key):
        return model.apply(
            {"params": params}, tokens, None, segments, deterministic, rngs={"dropout": jax.random.key(key)}, method="encode"
        )

    np.testing.assert_array_equal(encode(model, True, 0), encode(without, True, 0))
    assert float(jnp.abs(encode(model, False, 0) - encode(model, False, 1)).max()) > 0.1


def test_padding_row_starts_at_zero_and_its_lookup_sends_no_gradient():
    tokens, segments, _ = packed()
    model = build()
    drawn = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))["params"]
    for part in ("embed", "head"):
        table = np.asarray(drawn[part]["embedding"])
        assert not table[0].any()
        np.testing.assert_allclose(table[1:].std(), 0.3, rtol=0.15)

    def loss(params):
        return jnp.sum(jnp.sin(model.apply({"params": params}, tokens, None, segments, method="encode")))

    gradient = jax.jit(jax.grad(loss))(weights(model))["embed"]["embedding"]
    assert not np.asarray(gradient)[0].any()
    assert np.abs(np.asarray(gradient)[1:]).max() > 0.1
