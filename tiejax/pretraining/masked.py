"""The masked language modelling loss of a batch of masked rows.

The masked tokens of a batch are listed in a fixed number of slots (see `text.masking`), and only these have logits. Slot i has
the logits `table . t(states[slot_i]) + bias` and the loss `-ln softmax(logits)[target_i]` with weight `weight_i`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax.pretraining.loss import Head, Predicted, predict_slots
from tiejax.text.masking import MaskedRows
from tiejax.training.placement import total


def predict_masked(
    states: Float[Array, "rows length width"], head: Head, masked: MaskedRows, weight: Float[Array, " slots"]
) -> tuple[Float[Array, ""], Predicted]:
    """Return the weighted sum of the losses (nats) of the masked tokens, and the prediction of every slot.

    states: the final state of every token. weight: the weight of each slot in the sum.
    """
    at_slots = head.transform(states.reshape(-1, states.shape[-1])[masked.slot])
    return predict_slots(at_slots, head.table, masked.target, weight, head.bias)


def masked_loss(
    states: Float[Array, "rows length width"],
    head: Head,
    masked: MaskedRows,
    weight: Float[Array, " rows"],
    sum_over_devices: Callable[[jax.Array], jax.Array] = lambda number: number,
) -> Float[Array, ""]:
    """Return the mean loss (nats) of the masked tokens of a batch.

    weight: the weight of each row in the mean. sum_over_devices: as in `causal_loss`.
    """
    slot_weight = masked.weight * weight[masked.slot // states.shape[1]]
    nats, _ = predict_masked(states, head, masked, slot_weight)
    # A small batch may have no masked token: avoid dividing by 0.
    return nats / jnp.maximum(sum_over_devices(jnp.sum(slot_weight)), 1)


def masked_loss_on_devices(
    states: Float[Array, "rows length width"], head: Head, masked: MaskedRows
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return this device's share of the mean loss of a batch that is split over the devices of a member, and its metrics.

    The shares add up to the mean (see `training.placement`). Metrics: `loss` (nats) and `accuracy`, over the whole batch.
    """
    nats, predicted = predict_masked(states, head, masked, masked.weight)
    right = jnp.sum(masked.weight * predicted.correct)
    number, all_nats, all_right = total((jnp.sum(masked.weight), nats, right))
    number = jnp.maximum(number, 1)
    return nats / number, {"loss": all_nats / number, "accuracy": all_right / number}
