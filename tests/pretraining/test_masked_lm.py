"""Encoders in pre-training, with coupled and separate tables, against losses from the logits of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import models, tying
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.pretraining.masked import TIE, MaskedLM
from tiejax.text.masking import MaskedRows

VOCABULARY, LENGTH = 13, 6
FULL = Shape(8, 8, 8, 2, 2)
MASKED = MaskedRows(
    tokens=jnp.array([[2, 5, 4, 7, 3, 0], [2, 4, 9, 10, 4, 3]]),
    segments=jnp.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 2, 2, 2]]),
    row=jnp.arange(2),
    slot=jnp.array([2, 7, 10, 0]),
    target=jnp.array([6, 8, 11, 0]),
    weight=jnp.array([1.0, 1.0, 1.0, 0.0]),
    overflow=jnp.int32(0),
)


def build(shape, coupled):
    return MaskedLM(bert.build(shape, VOCABULARY, LENGTH, embedding_std=0.5), coupled)


def loss_of(objective, stored):
    """The loss of one device."""
    return jax.jit(jax.vmap(lambda _: objective.loss(stored, MASKED, None)[0], axis_name="data"))(jnp.zeros(1))[0]


@pytest.mark.slow
def test_loss_from_the_logits_of_the_model(x64):
    shape = Shape(4, 12, 8, 2, 2)
    objective = build(shape, False)
    stored = jax.jit(objective.init)(jax.random.key(0))
    logits = jax.jit(objective.model.apply)({"params": stored}, MASKED.tokens, segments=MASKED.segments).reshape(-1, VOCABULARY)
    nats = [-jax.nn.log_softmax(logits[place])[target] for place, target in ((2, 6), (7, 8), (10, 11))]
    np.testing.assert_allclose(loss_of(objective, stored), np.mean(nats), rtol=1e-12)
    assert jax.jit(objective.predict)(stored, MASKED).correct.tolist()[:3] == [
        bool(logits[p].argmax() == t) for p, t in ((2, 6), (7, 8), (10, 11))
    ]


@pytest.mark.slow
def test_head_with_a_copy_of_the_input_table_is_the_coupled_model(x64):
    """The losses are equal, and the gradient of the tied table is the sum of the gradients of the two tables."""
    coupled, decoupled = build(FULL, True), build(FULL, False)
    stored = jax.jit(coupled.init)(jax.random.key(1))
    assert stored["head"]["embedding"] is None
    copied = stored | {"head": stored["head"] | {"embedding": stored["embed"]["embedding"]}}
    np.testing.assert_allclose(loss_of(coupled, stored), loss_of(decoupled, copied), rtol=1e-14)
    one, two = (jax.jit(jax.grad(lambda p, of=of: loss_of(of, p)))(p) for of, p in ((coupled, stored), (decoupled, copied)))
    both = two["embed"]["embedding"] + two["head"]["embedding"]
    np.testing.assert_allclose(one["embed"]["embedding"], both, atol=1e-14)
    np.testing.assert_allclose(one["encoder"]["layers"]["out"]["kernel"], two["encoder"]["layers"]["out"]["kernel"], atol=1e-14)


def test_tied_factorised_table(x64):
    """As in ALBERT: E = 4 < H = 8, one table for input and output."""
    objective = build(Shape(4, 4, 8, 2, 2, coupled=True), True)
    stored = jax.jit(objective.init)(jax.random.key(1))
    whole = tying.view(stored, [TIE])
    assert whole["head"]["embedding"] is whole["embed"]["embedding"]
    assert whole["head"]["dense"]["kernel"].shape == (8, 4)
    assert np.isfinite(loss_of(objective, stored))


def test_tie_of_tables_of_different_shapes():
    objective = build(Shape(4, 12, 8, 2, 2), True)
    with pytest.raises(tying.TieError, match=r"embed/embedding.*\(13, 4\).*head/embedding.*\(13, 12\)"):
        jax.eval_shape(objective.init, jax.random.key(0))


@pytest.mark.slow
def test_dropout_of_the_embeddings_alone():
    model = models.LanguageModel(VOCABULARY, 8, models.Transformer(1, 8, 2, 16), embedding_dropout=0.5)
    objective = MaskedLM(model)
    params = objective.init(jax.random.key(0))
    plain, first, second = (objective.encode(params, MASKED, key) for key in (None, jax.random.key(1), jax.random.key(2)))
    assert not np.allclose(plain, first)
    assert not np.allclose(first, second)
