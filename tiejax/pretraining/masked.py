"""The masked-LM objective: losses of the masked tokens of a batch, and of a model with separate or tied tables.

The masked tokens of a batch are listed in a fixed number of slots (see `text.masking`), and only these have logits. Slot i has
the logits `table . t(states[slot_i]) + bias` and the loss `-ln softmax(logits)[target_i]` with weight `weight_i`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax import models, tying
from tiejax.pretraining.loss import Head, Predicted, predict_slots
from tiejax.text.masking import MaskedRows
from tiejax.training.placement import total

PyTree = Any
TIE = tying.Tie(*models.TABLE_PATHS)


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
    total = sum_over_devices(jnp.sum(slot_weight))
    return nats / jnp.where(total > 0, total, 1)


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


@dataclasses.dataclass(frozen=True)
class MaskedLM:
    """Masked-LM objective of a language model. coupled: tie its two tables, so that one table is stored.

    In shapes, `rows` is the number of rows of a step on one device, and `length` the number of tokens per row.
    """

    model: models.LanguageModel
    coupled: bool = False

    @property
    def ties(self) -> tuple[tying.Tie, ...]:
        """The tie of the two tables, empty if not coupled."""
        return (TIE,) if self.coupled else ()

    def init(self, key: jax.Array) -> PyTree:
        """Return initial parameters; raises TieError if the tied tables have different shapes."""
        return tying.store(self.model.init(key, jnp.zeros((1, 1), jnp.int32))["params"], self.ties)

    def encode(self, params: PyTree, masked: MaskedRows, key: jax.Array | None) -> Float[Array, "rows length width"]:
        """Return the states of the encoder; key: random key of dropout, None for no dropout."""
        encoder = self.model.encoder
        rates = self.model.embedding_dropout, *(getattr(encoder, name, 0) for name in ("dropout", "attention_dropout"))
        drops = key is not None and max(rate or 0 for rate in rates) > 0
        # Devices hold different rows, which need different dropout masks.
        rngs = {"dropout": jax.random.fold_in(key, masked.row[0])} if key is not None and drops else None
        variables = {"params": params}
        states = self.model.apply(variables, masked.tokens, None, masked.segments, not drops, rngs=rngs, method="encode")
        return jnp.asarray(states)

    def loss(self, stored: PyTree, masked: MaskedRows, key: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return this device's share of the mean loss over the masked tokens of a step, and the step's metrics."""
        return masked_loss_on_devices(*self._read(stored, masked, key), masked)

    def predict(self, stored: PyTree, masked: MaskedRows) -> Predicted:
        """Return the predictions of all slots, without dropout."""
        return predict_masked(*self._read(stored, masked, None), masked, masked.weight)[1]

    def _read(self, stored: PyTree, masked: MaskedRows, key: jax.Array | None) -> tuple[jax.Array, Head]:
        """Return the states of the encoder and the head that reads them."""
        params = tying.view(stored, self.ties)

        def transform(states: jax.Array) -> jax.Array:
            return jnp.asarray(self.model.apply({"params": params}, states, method="transform"))

        return self.encode(params, masked, key), Head(params["head"]["embedding"], transform, params["head"].get("bias"))
