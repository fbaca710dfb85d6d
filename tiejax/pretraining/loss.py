"""The loss head of language models: predictions at chosen places, the logits of a chunk at a time."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

PyTree = Any


def identity(states: jax.Array) -> jax.Array:
    """Return the states: a head without a transform."""
    return states


class Head(NamedTuple):
    """What predicts tokens from the encoder's states: the output embedding, a transform t before it, a bias behind it."""

    table: Float[Array, "vocabulary width"]
    transform: Callable[[jax.Array], jax.Array] = identity
    bias: Float[Array, "vocabulary"] | None = None


class Predicted(NamedTuple):
    """How the slots of a batch were predicted, slot by slot: cross-entropy (nats), and whether no token scored higher."""

    cross_entropy: Float[Array, "slots"]
    correct: Bool[Array, "slots"]


# Logits of one chunk take at most so much memory, which is large enough for the matrix products to run at full rate.
CHUNK_BYTES = 2**25


def chunk_of(slots: int, vocabulary: int) -> int:
    """Return how many slots are predicted at a time."""
    chunks = -(-slots * vocabulary * 4 // CHUNK_BYTES)
    return max(1, -(-slots // chunks))


def predict_slots(
    states: Float[Array, "slots width"],
    table: Float[Array, "vocabulary width"],
    target: Int[Array, "slots"],
    weight: Float[Array, "slots"],
    bias: Float[Array, "vocabulary"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Predicted]:
    """Return sum_i weight_i (-ln softmax(table . states_i + bias)[target_i]), and every slot's prediction.

    Logits exist for `chunk` slots at a time, forward and backward: the gradient with respect to the logits of a chunk,
    weight (softmax - onehot(target)), is formed beside them and taken to states, table and bias at once, so that memory does
    not grow with slots x vocabulary and no product is computed twice. Products are in the dtype of the states.
    Only the sum is differentiable.
    """
    size = chunk_of(len(states), len(table)) if chunk is None else chunk
    missing = -len(states) % size

    def padded(leaf: jax.Array) -> jax.Array:
        return jnp.concatenate([leaf, jnp.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) if missing else leaf

    output = _Output(table, bias)
    loss, predicted = _chunked(size, padded(states), output, padded(target), padded(weight))
    return loss, jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf[: len(states)]), predicted)


class _Output(NamedTuple):
    """What scores tokens: the output table, and the bias of the logits where there is one."""

    table: Float[Array, "vocabulary width"]
    bias: Float[Array, "vocabulary"] | None

    def logits(self, states: jax.Array) -> jax.Array:
        wide = jnp.promote_types(states.dtype, jnp.float32)
        logits = jnp.matmul(states, self.table.T.astype(states.dtype), preferred_element_type=wide)
        return logits if self.bias is None else logits + self.bias


class _Softmax(NamedTuple):
    """What one pass over the logits [slots, vocabulary] gives: e^(l - max l), its sum over tokens, and the predictions.

    A pass of its own for the argmax would cost more than anything else in this head: right is what no token beats.
    """

    exponentials: jax.Array
    total: jax.Array
    predicted: Predicted

    @classmethod
    def of(cls, logits: jax.Array, target: jax.Array) -> "_Softmax":
        highest = jnp.max(logits, axis=-1, keepdims=True)
        exponentials = jnp.exp(logits - highest)
        total = jnp.sum(exponentials, axis=-1)
        chosen = jnp.take_along_axis(logits, target[:, None], axis=-1)
        return cls(exponentials, total, Predicted(jnp.log(total) + (highest - chosen)[:, 0], (chosen >= highest)[:, 0]))


def _in_chunks(size: int, *leaves: jax.Array) -> list[jax.Array]:
    """Return leaves `[slots, ...]` as `[chunks, size, ...]`."""
    return [leaf.reshape(-1, size, *leaf.shape[1:]) for leaf in leaves]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(
    size: int, states: jax.Array, output: _Output, target: jax.Array, weight: jax.Array
) -> tuple[jax.Array, Predicted]:
    """Return the sum and the predictions, of a multiple of `size` slots."""

    def predict(chunk: list[jax.Array]) -> Predicted:
        return _Softmax.of(output.logits(chunk[0]), chunk[1]).predicted

    predicted = jax.lax.map(predict, _in_chunks(size, states, target))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1), predicted)
    return jnp.sum(weight * flat.cross_entropy), flat


def _chunked_forward(
    size: int, states: jax.Array, output: _Output, target: jax.Array, weight: jax.Array
) -> tuple[tuple[jax.Array, Predicted], tuple[jax.Array, _Output]]:
    def add(gradients: _Output, chunk: list[jax.Array]) -> tuple[_Output, tuple[Predicted, jax.Array]]:
        states, target, weight = chunk
        softmax = _Softmax.of(output.logits(states), target)
        at_target = jnp.arange(len(output.table)) == target[:, None]
        # Of the logits: weight (softmax - onehot(target)).
        gradient = softmax.exponentials * (weight / softmax.total)[:, None] - jnp.where(at_target, weight[:, None], 0)
        of_bias = None if gradients.bias is None else gradients.bias + jnp.sum(gradient, axis=0).astype(gradients.bias.dtype)
        gradient = gradient.astype(states.dtype)
        of_table = gradients.table + jnp.matmul(gradient.T, states, preferred_element_type=output.table.dtype)
        return _Output(of_table, of_bias), (softmax.predicted, gradient @ output.table.astype(gradient.dtype))

    start = jax.tree.map(jnp.zeros_like, output)
    gradients, (predicted, of_states) = jax.lax.scan(add, start, _in_chunks(size, states, target, weight))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1), predicted)
    loss = jnp.sum(weight * flat.cross_entropy)
    return (loss, flat), (of_states.reshape(states.shape), gradients)


def _chunked_backward(
    size: int, gradients: tuple[jax.Array, _Output], cotangent: tuple[jax.Array, Any]
) -> tuple[jax.Array, _Output, None, None]:
    of_states, of_output = jax.tree.map(lambda leaf: leaf * cotangent[0].astype(leaf.dtype), gradients)
    return of_states, of_output, None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
