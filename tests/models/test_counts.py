"""Parameter counts in closed form, against the shapes of initialised models."""

import math

import jax
import jax.numpy as jnp
import pytest

from tiejax import models, tying
from tiejax.models import bert, counts
from tiejax.models.shapes import PUBLISHED_SHAPES, Shape


def number_of(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def shapes_of(model, length, width):
    """Return the shapes of an encoder's parameters."""
    tokens = jax.ShapeDtypeStruct((1, length, width), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]


@pytest.mark.parametrize(("layers", "width", "feed_forward"), [(1, 4, 4), (2, 8, 12), (3, 16, 5)])
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer(layers, width, feed_forward, norm_first):
    model = models.Transformer(layers, width, 2, feed_forward, norm_first=norm_first)
    assert counts.transformer(layers, width, feed_forward, norm_first) == number_of(shapes_of(model, 3, width))


@pytest.mark.parametrize("rank", [0, 1, 3, 100])
def test_low_rank_adaptation(rank):
    model = models.Transformer(3, 8, 2, 12, norm_first=True, stack_size=1, lora_rank=rank)
    assert counts.lora(3, 8, 12, rank) == number_of(shapes_of(model, 3, 8).get("lora", ()))


@pytest.mark.parametrize(("layers", "width", "hidden"), [(1, 4, 8), (2, 4, 8), (4, 5, 3)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm(layers, width, hidden, bidirectional):
    model = models.BidirectionalLSTM(layers, width, hidden, bidirectional)
    assert counts.lstm(layers, width, hidden, bidirectional) == number_of(shapes_of(model, 3, width))


@pytest.mark.parametrize(("layers", "width", "length", "token", "channel"), [(1, 4, 8, 4, 8), (3, 5, 7, 2, 9)])
def test_mixer(layers, width, length, token, channel):
    model = models.Mixer(layers, token, channel)
    assert counts.mixer(layers, width, length, token, channel) == number_of(shapes_of(model, length, width))


SHAPES = [
    Shape(4, 6, 8, 2, 2),
    Shape(8, 8, 8, 3, 2, coupled=True, drop=1),
    Shape(4, 4, 8, 1, 4, coupled=True),
    Shape(16, 4, 8, 4, 2, drop=3),
    PUBLISHED_SHAPES[-1].shape,
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bert(shape):
    """Stored as in pre-training, with a coupled table once; and without the head and dropped layers."""
    model = bert.build(shape, 11, 16)
    ties = [tying.Tie(*models.TABLE_PATHS)] if shape.coupled else []

    def stored(key):
        return tying.store(model.init(key, jnp.zeros((1, 1), jnp.int32))["params"], ties)

    params = jax.eval_shape(stored, jax.random.key(0))
    assert counts.bert_encoder(shape, 11, 16) + counts.bert_head(shape, 11) == number_of(params)
    fine_tuned = jax.eval_shape(lambda params: bert.drop_layers(bert.discard_head(params), shape.drop), params)
    assert counts.bert_fine_tuned(shape, 11, 16) == number_of(fine_tuned)
