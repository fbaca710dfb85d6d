"""The causal language modelling loss of a batch of rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiejax.pretraining.loss import Head, predict_slots


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
    return nats / jnp.maximum(sum_over_devices(jnp.sum(token_weight)), 1)
