"""Masked language modelling: from the encoder's states of masked rows to the loss.

The masked tokens of a batch lie in a fixed number of slots (see `text.masking`), and logits exist for these alone. Slot i has
the logits `table . t(states[slot_i]) + bias` and the loss `-ln softmax(logits)[target_i]`, which counts `weight_i` times.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax.pretraining.loss import Head, Predicted, predict_slots
from tiejax.text.masking import MaskedRows
from tiejax.training.sharding import total


def predict_masked(
    states: Float[Array, "rows length width"], head: Head, masked: MaskedRows, weight: Float[Array, "slots"]
) -> tuple[Float[Array, ""], Predicted]:
    """Return the weighted sum of the losses (nats) of the masked tokens, and the prediction of every slot.

    states: the encoder's, of every token. weight: how much each slot counts.
    """
    at_slots = head.transform(states.reshape(-1, states.shape[-1])[masked.slot])
    return predict_slots(at_slots, head.table, masked.target, weight, head.bias)


def masked_loss(
    states: Float[Array, "rows length width"],
    head: Head,
    masked: MaskedRows,
    weight: Float[Array, "rows"],
    of_all: Callable[[jax.Array], jax.Array] = lambda number: number,
) -> Float[Array, ""]:
    """Return the mean loss (nats) of the masked tokens of a batch; weight: how much each row counts.

    of_all: as `causal_loss` has it.
    """
    of_slot = masked.weight * weight[masked.slot // states.shape[1]]
    nats, _ = predict_masked(states, head, masked, of_slot)
    # Of a small batch it may be that nothing is masked.
    return nats / jnp.maximum(of_all(jnp.sum(of_slot)), 1)


def masked_loss_on_devices(
    states: Float[Array, "rows length width"], head: Head, masked: MaskedRows
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return this device's share of the mean loss of a batch that the devices of a member hold together, and its metrics.

    The shares add up to the mean (see `training.sharding`). Metrics: `loss` (nats) and `accuracy`, over the whole batch.
    """
    nats, predicted = predict_masked(states, head, masked, masked.weight)
    right = jnp.sum(masked.weight * predicted.correct)
    number, all_nats, all_right = total((jnp.sum(masked.weight), nats, right))
    number = jnp.maximum(number, 1)
    return nats / number, {"loss": all_nats / number, "accuracy": all_right / number}
