"""Losses of language models: predictions at selected positions (slots), with logits computed in chunks of slots."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

PyTree = Any


class Head(NamedTuple):
    """A prediction head: logits `table . transform(states) + bias`."""

    table: Float[Array, "vocabulary width"]
    transform: Callable[[jax.Array], jax.Array] = lambda states: states
    bias: Float[Array, " vocabulary"] | None = None


class Predicted(NamedTuple):
    """Predictions at slots: cross-entropy (nats), and whether no token has a higher logit than the target.

    A separate pass for the argmax would dominate the cost of the head.
    """

    cross_entropy: Float[Array, " slots"]
    correct: Bool[Array, " slots"]


# Limit of the logits of one chunk in bytes, large enough for matrix products to run at full speed.
CHUNK_BYTES = 2**25


def chunk_of(slots: int, vocabulary: int) -> int:
    """Return the number of slots per chunk, such that the float32 logits of a chunk fit `CHUNK_BYTES`."""
    chunks = -(-slots * vocabulary * 4 // CHUNK_BYTES)
    return max(1, -(-slots // max(1, chunks)))


def predict_slots(
    states: Float[Array, "slots width"],
    table: Float[Array, "vocabulary width"],
    target: Int[Array, " slots"],
    weight: Float[Array, " slots"],
    bias: Float[Array, " vocabulary"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Predicted]:
    """Return sum_i weight_i (-ln softmax(table . states_i + bias)[target_i]), and the prediction of every slot.

    Logits exist for `chunk` slots at a time: their gradient, weight (softmax - onehot(target)), is computed with them and
    propagated to states, table and bias immediately, so that memory does not grow with slots x vocabulary and no product is
    computed twice. Products are in the dtype of the states. Only the sum is differentiable, and not with respect to `weight`.
    A target that is no row of the table gives NaN, unless its weight is 0.
    """
    size = chunk_of(len(states), len(table)) if chunk is None else chunk
    outside = (target < 0) | (target >= len(table))
    # Slots that do not count may hold any number, such as -100; in others, a negative one must not count from the end.
    target = jnp.where(outside, jnp.where(weight == 0, 0, jnp.int32(len(table))), target)
    missing = -len(states) % size

    def padded(leaf: jax.Array) -> jax.Array:
        return jnp.concatenate([leaf, jnp.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) if missing else leaf

    output = _Output(table, bias)
    loss, predicted = _chunked(size, padded(states), output, padded(target), padded(weight))
    return loss, jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf[: len(states)]), predicted)


def causal_loss(
    states: Float[Array, "rows length width"],
    head: Head,
    tokens: Int[Array, "rows length"],
    weight: Float[Array, " rows"],
    end: int | None = None,
    sum_over_devices: Callable[[jax.Array], jax.Array] = lambda number: number,
) -> Float[Array, ""]:
    """Return the mean loss (nats) of all tokens except the first of each row, each predicted from the state before it.

    -ln softmax(table . f(states[r, t - 1]) + bias)[tokens[r, t]], averaged over t = 1 .. length - 1 and, weighted, over rows r;
    f is the transform of the head. end: token to predict from the last state of every row, at t = length (default: none).
    sum_over_devices: sums the number of predictions over all devices that share the batch, so that the losses of the devices
    add up to the mean.
    """
    following = tokens[:, 1:]
    if end is not None:
        following = jnp.pad(following, ((0, 0), (0, 1)), constant_values=end)
    token_weight = jnp.repeat(weight, following.shape[1])
    before = head.transform(states[:, : following.shape[1]].reshape(-1, states.shape[-1]))
    nats, _ = predict_slots(before, head.table, following.reshape(-1), token_weight, head.bias)
    total = sum_over_devices(jnp.sum(token_weight))
    return nats / jnp.where(total > 0, total, 1)


class _Output(NamedTuple):
    """The output table and the optional bias of the logits."""

    table: Float[Array, "vocabulary width"]
    bias: Float[Array, " vocabulary"] | None

    def logits(self, states: jax.Array) -> jax.Array:
        wide = jnp.promote_types(states.dtype, jnp.float32)
        logits = jnp.matmul(states, self.table.T.astype(states.dtype), preferred_element_type=wide)
        return logits if self.bias is None else logits + self.bias


class _Softmax(NamedTuple):
    """Results of one pass over logits l [slots, vocabulary]: e^(l - max l), its sum over tokens, and the predictions."""

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
    """Reshape leaves `[slots, ...]` to `[chunks, size, ...]`."""
    return [leaf.reshape(-1, size, *leaf.shape[1:]) for leaf in leaves]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(
    size: int, states: jax.Array, output: _Output, target: jax.Array, weight: jax.Array
) -> tuple[jax.Array, Predicted]:
    """Return the weighted sum and the predictions; the number of slots must be a multiple of `size`."""

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
        # The gradient of the logits: weight (softmax - onehot(target)).
        gradient = softmax.exponentials * (weight / softmax.total)[:, None] - jnp.where(at_target, weight[:, None], 0)
        bias_gradient = (
            None if gradients.bias is None else gradients.bias + jnp.sum(gradient, axis=0).astype(gradients.bias.dtype)
        )
        gradient = gradient.astype(states.dtype)
        table_gradient = gradients.table + jnp.matmul(gradient.T, states, preferred_element_type=output.table.dtype)
        return _Output(table_gradient, bias_gradient), (softmax.predicted, gradient @ output.table.astype(gradient.dtype))

    start = jax.tree.map(jnp.zeros_like, output)
    gradients, (predicted, states_gradient) = jax.lax.scan(add, start, _in_chunks(size, states, target, weight))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1), predicted)
    loss = jnp.sum(weight * flat.cross_entropy)
    return (loss, flat), (states_gradient.reshape(states.shape), gradients)


def _chunked_backward(
    size: int, gradients: tuple[jax.Array, _Output], cotangent: tuple[jax.Array, Any]
) -> tuple[jax.Array, _Output, None, None]:
    states_gradient, output_gradient = jax.tree.map(lambda leaf: leaf * cotangent[0].astype(leaf.dtype), gradients)
    return states_gradient, output_gradient, None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
