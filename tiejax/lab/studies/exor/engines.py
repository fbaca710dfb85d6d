"""The two ways in which a model of EXor is computed.

The *plain* engine feeds sequences of tokens to the model as it is. It takes every architecture, and dropout.

The *fast* engine is for a transformer without positions and dropout. Such a model cannot tell two sequences apart that hold the
same symbols, so a sequence is written as its multiset: how often each symbol occurs. Attention then runs over the symbols
instead of the tokens, and equal multisets are computed once and weighted (`models.multiset` has the mathematics). It gives the
plain engine's losses and gradients up to rounding, about ten times sooner.

Both see the same batches: for a model that sees no order, either engine samples the same outcomes by the same keys, and only
writes them down in its own form. A model that sees order has a sampler of its own, which keeps the positions.

An engine gives the study: batches, the loss of a batch, and the states of all contexts for the exact risk.
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
from tiejax.lab.studies.exor.batches import MaskedSequences, SequenceSampler
from tiejax.lab.studies.exor.contexts import Contexts
from tiejax.lab.studies.exor.multisets import MaskedMultisets, MultisetSampler
from tiejax.lab.studies.exor.task import EXor
from tiejax.models import LanguageModel, multiset

PyTree = Any
Metrics = dict[str, jax.Array]
# (data key, order key, step, number of the task) -> the batch of that step
Sample = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class PlainEngine:
    """Sequences through the model as it is.

    tasks: one, or the doses of an ensemble, by number. ordered: whether the model sees the order of the symbols.
    """

    model: LanguageModel
    tasks: Sequence[EXor]
    ordered: bool
    dropout: float

    contexts_at_once: ClassVar[int] = 256

    def sampler(self, rows: Int[np.ndarray, "strings bits"], batch_size: int | None) -> Sample:
        """Return what samples batches of these strings."""
        if not self.ordered:
            return MultisetSampler(self.tasks, rows, batch_size).sequences
        sampler = SequenceSampler(self.tasks[0], rows, batch_size)
        return lambda data_key, order_key, step, task: sampler.batch(data_key, order_key, step)

    def of_outcomes(self, sampler: MultisetSampler, outcomes: Int[Array, "batch"]) -> MaskedSequences:
        """Return a batch that was drawn before, by `sampler.outcomes`, in this engine's form."""
        return sampler.sequences_of(outcomes)

    def take(self, sequences: MaskedSequences) -> MaskedSequences:
        """Return a batch of sequences in this engine's form."""
        return sequences

    def loss(self, params: PyTree, batch: MaskedSequences, key: jax.Array | None) -> tuple[Float[Array, ""], Metrics]:
        """Return loss and metrics of a batch. key: of the dropout; without one nothing is dropped."""
        return training.masked_lm_loss(self._logits, params, batch, key)

    def _logits(self, params: PyTree, batch: MaskedSequences, key: jax.Array | None) -> Float[Array, "batch vocabulary"]:
        rngs = {"dropout": key} if key is not None and self.dropout > 0 else None
        apply: Any = self.model.apply  # Flax says that it may return a pair
        return apply({"params": params}, batch.tokens, batch.position, deterministic=rngs is None, rngs=rngs)

    def inputs(self, contexts: Contexts) -> PyTree:
        """Return what `encode` is asked for these contexts, a tree of arrays `[contexts, ...]`."""
        return contexts.tokens, contexts.position

    def encode(self, params: PyTree, inputs: PyTree) -> Float[Array, "contexts width"]:
        """Return h, the state at the mask of each context."""
        apply: Any = self.model.apply
        return apply({"params": params}, *inputs, method="encode")


@dataclasses.dataclass(frozen=True)
class FastEngine:
    """Multisets of symbols through the multiset form of the model; fields as of `PlainEngine`.

    product: how the loss multiplies matrices (`models.multiset`).
    """

    model: LanguageModel
    tasks: Sequence[EXor]
    product: multiset.Product = jnp.matmul

    contexts_at_once: ClassVar[int] = 1024

    def sampler(self, rows: Int[np.ndarray, "strings bits"], batch_size: int | None) -> Sample:
        return MultisetSampler(self.tasks, rows, batch_size).multisets

    def of_outcomes(self, sampler: MultisetSampler, outcomes: Int[Array, "batch"]) -> MaskedMultisets:
        return sampler.multisets_of(outcomes)

    def take(self, sequences: MaskedSequences) -> MaskedMultisets:
        return multisets.count(sequences, self.tasks[0].vocabulary)

    def loss(self, params: PyTree, batch: MaskedMultisets, key: jax.Array | None) -> tuple[Float[Array, ""], Metrics]:
        logits = multiset.logits(self.model, params, batch.counts, self.tasks[0].mask, self.product)
        return training.asked_loss(logits, batch.asked)

    def inputs(self, contexts: Contexts) -> PyTree:
        return multisets.occurrences(contexts.tokens, self.tasks[0].vocabulary).T

    def encode(self, params: PyTree, inputs: PyTree) -> Float[Array, "contexts width"]:
        return multiset.encode(self.model, params, inputs.T, self.tasks[0].mask).T


Engine = PlainEngine | FastEngine
