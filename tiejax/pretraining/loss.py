"""The loss head of language models: predictions at chosen places, the logits of a chunk at a time."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tiejax.training.loss import cross_entropy


class Predicted(NamedTuple):
    """How the slots of a batch were predicted, slot by slot: cross-entropy (nats), and whether the argmax was right."""

    cross_entropy: Float[Array, "slots"]
    correct: Bool[Array, "slots"]


# Logits of one chunk take at most so much memory, which is large enough for the matrix products to run at full rate.
CHUNK_BYTES = 2**26


def chunk_of(slots: int, vocabulary: int) -> int:
    """Return how many slots are predicted at a time."""
    chunks = -(-slots * vocabulary * 4 // CHUNK_BYTES)
    return max(1, -(-slots // chunks))


def predict_slots(
    states: Float[Array, "slots width"],
    table: Float[Array, "vocabulary width"],
    target: Int[Array, "slots"],
    weight: Float[Array, "slots"],
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Predicted]:
    """Return sum_i weight_i (-ln softmax(table . states_i)[target_i]), and every slot's prediction.

    Logits exist for `chunk` slots at a time, forward and backward: the gradient with respect to the logits of a chunk,
    weight (softmax - onehot(target)), is formed beside them and taken to states and table at once, so that memory does not
    grow with slots x vocabulary and no product is computed twice. Products are in the dtype of the states.
    Only the sum is differentiable.
    """
    size = chunk_of(len(states), len(table)) if chunk is None else chunk
    missing = -len(states) % size

    def padded(leaf: jax.Array) -> jax.Array:
        return jnp.concatenate([leaf, jnp.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) if missing else leaf

    parts = (padded(states), table, padded(target), padded(weight))
    loss, predicted = _chunked(size, *parts)
    return loss, jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf[: len(states)]), predicted)


def _in_chunks(size: int, *leaves: jax.Array) -> list[jax.Array]:
    """Return leaves `[slots, ...]` as `[chunks, size, ...]`."""
    return [leaf.reshape(-1, size, *leaf.shape[1:]) for leaf in leaves]


def _logits(states: jax.Array, table: jax.Array) -> jax.Array:
    wide = jnp.promote_types(states.dtype, jnp.float32)
    return jnp.matmul(states, table.T.astype(states.dtype), preferred_element_type=wide)


def _predicted(logits: jax.Array, target: jax.Array) -> Predicted:
    return Predicted(cross_entropy(logits, target), jnp.argmax(logits, axis=-1) == target)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(size: int, *parts: jax.Array) -> tuple[jax.Array, Predicted]:
    """Return the sum and the predictions; parts: states, table, target, weight, of a multiple of `size` slots."""
    states, table, target, weight = parts

    def predict(chunk: list[jax.Array]) -> Predicted:
        return _predicted(_logits(chunk[0], table), chunk[1])

    predicted = jax.lax.map(predict, _in_chunks(size, states, target))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1), predicted)
    return jnp.sum(weight * flat.cross_entropy), flat


def _chunked_forward(size: int, *parts: jax.Array) -> tuple[tuple[jax.Array, Predicted], tuple[jax.Array, jax.Array]]:
    states, table, target, weight = parts

    def add(table_gradient: jax.Array, chunk: list[jax.Array]) -> tuple[jax.Array, tuple[Predicted, jax.Array]]:
        states, target, weight = chunk
        logits = _logits(states, table)
        predicted = _predicted(logits, target)
        at_target = jnp.arange(len(table)) == target[:, None]
        gradient = ((jax.nn.softmax(logits, axis=-1) - at_target) * weight[:, None]).astype(states.dtype)
        of_chunk = jnp.matmul(gradient.T, states, preferred_element_type=table.dtype)
        return table_gradient + of_chunk, (predicted, gradient @ table.astype(gradient.dtype))

    chunks = _in_chunks(size, states, target, weight)
    table_gradient, (predicted, state_gradient) = jax.lax.scan(add, jnp.zeros_like(table), chunks)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1), predicted)
    loss = jnp.sum(weight * flat.cross_entropy)
    return (loss, flat), (state_gradient.reshape(states.shape), table_gradient)


def _chunked_backward(
    size: int, gradients: tuple[jax.Array, jax.Array], cotangent: tuple[jax.Array, Any]
) -> tuple[jax.Array, jax.Array, None, None]:
    states, table = gradients
    return states * cotangent[0].astype(states.dtype), table * cotangent[0].astype(table.dtype), None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
