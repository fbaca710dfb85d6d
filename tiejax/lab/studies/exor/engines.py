"""The plain and the fast engine: two ways to compute a model of EXor.

The *plain* engine applies the model to sequences of tokens. It supports every architecture, and dropout.

The *fast* engine is for a transformer without positions and dropout. Such a model cannot distinguish two permutations of one
sequence, so a sequence is represented as a multiset: the number of occurrences of each symbol. Attention then runs over symbols
instead of tokens, and equal multisets are computed once and weighted (see `models.multiset` for the mathematics). Losses and
gradients equal those of the plain engine up to rounding, at about ten times the speed.

Both engines see the same batches: for a model without positions they sample the same outcomes from the same keys and differ in
the representation only. A model that sees the order of symbols has a separate sampler, which keeps positions.

An engine provides batches, the loss of a batch, and the states of all contexts for the exact risk.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tiejax import training
from tiejax.lab.studies.exor import multisets
from tiejax.lab.studies.exor.batches import MaskedSequences, sequences
from tiejax.lab.studies.exor.contexts import Contexts
from tiejax.lab.studies.exor.multisets import MaskedMultisets, MultisetSampler
from tiejax.lab.studies.exor.task import EXor
from tiejax.models import LanguageModel, multiset

PyTree = Any
Metrics = dict[str, jax.Array]
# (data key, order key, step, index of the task) -> the batch of that step
Sample = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class PlainEngine:
    """Engine that applies the model to sequences of tokens.

    tasks: one, or one per dose. ordered: whether the model sees the order of the symbols. outcomes: the symbols that logits are
    normalised over (default: all).
    """

    model: LanguageModel
    tasks: Sequence[EXor]
    ordered: bool
    dropout: float
    outcomes: tuple[int, ...] | None = None

    contexts_at_once: ClassVar[int] = 256

    def sampler(self, rows: Int[np.ndarray, "strings bits"], batch_size: int | None) -> Sample:
        """Return the sampler of batches of these strings."""
        if not self.ordered:
            return MultisetSampler(self.tasks, rows, batch_size).sequences
        return lambda data_key, order_key, step, task: sequences(self.tasks[0], rows, batch_size, data_key, order_key, step)

    def of_outcomes(self, sampler: MultisetSampler, outcomes: Int[Array, " batch"]) -> MaskedSequences:
        """Return the batch of outcomes drawn earlier by `sampler.outcomes`, in this engine's representation."""
        return sampler.sequences_of(outcomes)

    def take(self, visits: MaskedSequences) -> MaskedSequences:
        """Return a batch of sequences in this engine's representation."""
        return visits

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

    def sampler(self, rows: Int[np.ndarray, "strings bits"], batch_size: int | None) -> Sample:
        return MultisetSampler(self.tasks, rows, batch_size).multisets

    def of_outcomes(self, sampler: MultisetSampler, outcomes: Int[Array, " batch"]) -> MaskedMultisets:
        return sampler.multisets_of(outcomes)

    def take(self, visits: MaskedSequences) -> MaskedMultisets:
        return multisets.count(visits, self.tasks[0].vocabulary)

    def loss(self, params: PyTree, batch: MaskedMultisets, key: jax.Array | None) -> tuple[Float[Array, ""], Metrics]:
        logits = multiset.logits(self.model, params, batch.counts, self.tasks[0].mask, self.product)
        if self.outcomes is None:
            return training.asked_loss(logits, batch.asked)
        outcomes = np.array(self.outcomes)
        return training.asked_loss(logits[outcomes], batch.asked[outcomes])

    def inputs(self, contexts: Contexts) -> PyTree:
        return multisets.occurrences(contexts.tokens, self.tasks[0].vocabulary).T

    def encode(self, params: PyTree, inputs: PyTree) -> Float[Array, "contexts width"]:
        return multiset.encode(self.model, params, inputs.T, self.tasks[0].mask).T


Engine = PlainEngine | FastEngine
