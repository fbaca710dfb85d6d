"""The plain and the fast engine: two ways to compute a model of EXor.

The *plain* engine applies the model to sequences of tokens. It supports every architecture, and dropout.

The *fast* engine is for a transformer without positions and dropout. Such a model cannot distinguish two permutations of one
sequence, so a sequence is represented as a multiset: the number of occurrences of each symbol. Attention then runs over symbols
instead of tokens, and equal multisets are computed once and weighted (see `models.multiset` for the mathematics). Losses and
gradients equal those of the plain engine up to rounding, at about ten times the speed.

Both engines see the same batches (see `multisets.Sampler`) and differ in their representation only. An engine provides this
representation, the loss of a batch, and the states of all contexts for the exact risk.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tiejax import training
from tiejax.lab.studies.exor.batches import MaskedSequences
from tiejax.lab.studies.exor.contexts import Contexts
from tiejax.lab.studies.exor.multisets import MaskedMultisets, Visits, as_multisets, as_sequences, occurrences
from tiejax.lab.studies.exor.task import EXor
from tiejax.models import LanguageModel, multiset

PyTree = Any
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class PlainEngine:
    """Engine that applies the model to sequences of tokens.

    tasks: one, or one per dose. outcomes: the symbols that logits are normalised over (default: all).
    """

    model: LanguageModel
    tasks: Sequence[EXor]
    dropout: float
    outcomes: tuple[int, ...] | None = None

    contexts_at_once: ClassVar[int] = 256

    def batch(self, visits: Visits) -> MaskedSequences:
        """Return the visits of a batch in this engine's representation."""
        return as_sequences(self.tasks, visits)

    def loss(self, params: PyTree, batch: MaskedSequences, key: jax.Array | None) -> tuple[Float[Array, ""], Metrics]:
        """Return loss and metrics of a batch. key: for dropout, or None to disable it."""
        return training.masked_lm_loss(self._logits, params, batch, key)

    def _logits(self, params: PyTree, batch: MaskedSequences, key: jax.Array | None) -> Float[Array, "batch vocabulary"]:
        rngs = {"dropout": key} if key is not None and self.dropout > 0 else None
        apply: Any = self.model.apply  # annotated by Flax as possibly returning a pair
        logits = apply({"params": params}, batch.tokens, batch.position, deterministic=rngs is None, rngs=rngs)
        if self.outcomes is None:
            return logits
        return jnp.where(np.isin(np.arange(logits.shape[1]), self.outcomes), logits, -jnp.inf)

    def inputs(self, contexts: Contexts) -> PyTree:
        """Return the inputs of `encode` for these contexts, a tree of arrays `[contexts, ...]`."""
        return contexts.tokens, contexts.position

    def encode(self, params: PyTree, inputs: PyTree) -> Float[Array, "contexts width"]:
        """Return the states h at the mask of each context."""
        apply: Any = self.model.apply
        return apply({"params": params}, *inputs, method="encode")


@dataclasses.dataclass(frozen=True)
class FastEngine:
    """Engine that applies the multiset form of the model to multisets of symbols; fields as in `PlainEngine`.

    product: the matrix product used by the loss (see `models.multiset`).
    """

    model: LanguageModel
    tasks: Sequence[EXor]
    product: multiset.Product = jnp.matmul
    outcomes: tuple[int, ...] | None = None

    contexts_at_once: ClassVar[int] = 1024

    def batch(self, visits: Visits) -> MaskedMultisets:
        return as_multisets(self.tasks, visits)

    def loss(self, params: PyTree, batch: MaskedMultisets, key: jax.Array | None) -> tuple[Float[Array, ""], Metrics]:
        logits = multiset.logits(self.model, params, batch.counts, self.tasks[0].mask, self.product)
        if self.outcomes is None:
            return training.asked_loss(logits, batch.asked)
        outcomes = np.array(self.outcomes)
        return training.asked_loss(logits[outcomes], batch.asked[outcomes])

    def inputs(self, contexts: Contexts) -> PyTree:
        return occurrences(contexts.tokens, self.tasks[0].vocabulary).T

    def encode(self, params: PyTree, inputs: PyTree) -> Float[Array, "contexts width"]:
        return multiset.encode(self.model, params, inputs.T, self.tasks[0].mask).T


Engine = PlainEngine | FastEngine
