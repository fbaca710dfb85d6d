"""Causal language modelling: from the decoder's states of whole blocks to the loss."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiejax.pretraining.loss import Head, predict_slots


def causal_loss(
    states: Float[Array, "rows length width"],
    head: Head,
    tokens: Int[Array, "rows length"],
    weight: Float[Array, "rows"],
    end: int | None = None,
    of_all: Callable[[jax.Array], jax.Array] = lambda number: number,
) -> Float[Array, ""]:
    """Return the mean loss (nats) of every token but the first of each row, predicted from the state before it.

    -ln softmax(table . f(states[r, t - 1]) + bias)[tokens[r, t]], averaged over t = 1 .. length - 1 and, weighted, over rows r;
    f is the head's transform. end: a token that is predicted from the last state of every row, at t = length (default: nothing
    is). of_all: from this device's number of predictions to that of all devices that share the batch, for its share of the
    mean.
    """
    following = tokens[:, 1:]
    if end is not None:
        following = jnp.pad(following, ((0, 0), (0, 1)), constant_values=end)
    of_token = jnp.repeat(weight, following.shape[1])
    before = head.transform(states[:, : following.shape[1]].reshape(-1, states.shape[-1]))
    nats, _ = predict_slots(before, head.table, following.reshape(-1), of_token, head.bias)
    return nats / jnp.maximum(of_all(jnp.sum(of_token)), 1)
