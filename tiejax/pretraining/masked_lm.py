"""The masked-LM objective of an encoder with separate or tied tables: initial parameters, loss and predictions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from tiejax import models, tying
from tiejax.models import bert
from tiejax.pretraining.loss import Head, Predicted
from tiejax.pretraining.masked import masked_loss_on_devices, predict_masked
from tiejax.text.masking import MaskedRows

PyTree = Any
TIE = tying.Tie(*models.TABLE_PATHS)


@dataclasses.dataclass(frozen=True)
class MaskedLM:
    """Masked-LM objective of a model of `models.bert`. coupled: tie its two tables, so that one table is stored.

    In shapes, `rows` is the number of rows of a step on one device, and `length` the number of tokens per row.
    """

    model: models.LanguageModel
    coupled: bool

    @property
    def ties(self) -> tuple[tying.Tie, ...]:
        """The tie of the two tables, empty if not coupled."""
        return (TIE,) if self.coupled else ()

    def init(self, key: jax.Array) -> PyTree:
        """Return initial parameters; raises TieError if the tied tables have different shapes."""
        return tying.store(self.model.init(key, jnp.zeros((1, 1), jnp.int32))["params"], self.ties)

    def loss(self, stored: PyTree, masked: MaskedRows, key: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return this device's share of the mean loss over the masked tokens of a step, and the step's metrics."""
        return masked_loss_on_devices(*self._read(stored, masked), masked)

    def predict(self, stored: PyTree, masked: MaskedRows) -> Predicted:
        """Return the predictions of all slots."""
        return predict_masked(*self._read(stored, masked), masked, masked.weight)[1]

    def _read(self, stored: PyTree, masked: MaskedRows) -> tuple[jax.Array, Head]:
        """Return the encoder's states `[rows, length, width]` and the head that reads them."""
        variables = {"params": tying.view(stored, self.ties)}
        states = self.model.apply(variables, masked.tokens, segments=masked.segments, method="encode")
        head = variables["params"][bert.HEAD]

        def transform(states: jax.Array) -> jax.Array:
            return jnp.asarray(self.model.apply(variables, states, method="transform"))

        return jnp.asarray(states), Head(head["embedding"], transform, head["bias"])
