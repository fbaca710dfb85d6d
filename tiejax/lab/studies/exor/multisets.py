"""Visits to EXor strings as multisets of symbols, each visit sampled from one 32-bit word.

Spelling a string and masking one of its bits has few outcomes, told apart by the multiset that is left and the symbol under the
mask; strings with equally many zeros have them with equal probabilities. So there is an alias table for each number of zeros,
which turns a word into an outcome. The law is that of `batches.visit`; the outcomes that are drawn differ.

A batch of multisets has one column a visit, or, where the task has no more multisets than that, one column for each of them
with the number of its visits as weight: two ways to write one batch.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from tiejax.lab.studies.exor.alias_table import WORD_BITS, alias_table
from tiejax.lab.studies.exor.batches import MaskedSequences, visit, visited
from tiejax.lab.studies.exor.contexts import MAX_OUTCOMES, all_contexts, most_outcomes, over_all_strings
from tiejax.lab.studies.exor.task import EXor


class MaskedMultisets(NamedTuple):
    """Masked multisets, and how often each asks for each symbol.

    counts: occurrences of each symbol, the mask included. asked: share of the batch that has this multiset and this symbol
    under the mask; sums to 1.
    """

    counts: Float[Array, "vocabulary multisets"]
    asked: Float[Array, "vocabulary multisets"]


def count(batch: MaskedSequences, vocabulary: int) -> MaskedMultisets:
    """Return the multisets of a batch of sequences, one column each."""
    counts = jnp.sum(jax.nn.one_hot(batch.tokens, vocabulary, axis=0), axis=2)
    return MaskedMultisets(counts, jax.nn.one_hot(batch.target, vocabulary, axis=0) / len(batch.target))


def occurrences(tokens: Int[np.ndarray, "sequences length"], vocabulary: int) -> Float[np.ndarray, "vocabulary sequences"]:
    """Return how often each symbol occurs in each sequence."""
    return np.stack([(tokens == symbol).sum(1) for symbol in range(vocabulary)]).astype(float)


@dataclasses.dataclass(frozen=True)
class MultisetSampler:
    """Visits to a set of strings, for a model that sees no order. Its batches are functions of keys, step and task number.

    tasks: the distributions a batch can be asked for, by number; they must use the same symbols.
    batch_size: as of `batches.SequenceSampler`.
    Raises ValueError if the tasks use different symbols, or if there are several and a string has over 1,024 outcomes.
    (One such task is visited string by string and counted.)
    """

    tasks: Sequence[EXor]
    rows: Int[np.ndarray, "strings bits"]
    batch_size: int | None = None

    def __post_init__(self) -> None:
        first = self.tasks[0]
        if any((task.bits, task.used, task.vocabulary) != (first.bits, first.used, first.vocabulary) for task in self.tasks):
            raise ValueError("the tasks of one sampler must use the same symbols")
        if len(self.tasks) > 1 and not self.tabled:
            raise ValueError(f"{most_outcomes(first)} outcomes a string are more than the {MAX_OUTCOMES} that can be tabled")

    @property
    def tabled(self) -> bool:
        """Whether visits are sampled from alias tables."""
        return most_outcomes(self.tasks[0]) <= MAX_OUTCOMES

    def sequences(
        self, data_key: Key[Array, ""], order_key: Key[Array, ""], step: Int[Array, ""], task: Int[Array, ""]
    ) -> MaskedSequences:
        """Return the batch of a step as sequences, each the first of its multiset's with the mask in front."""
        if not self.tabled:
            strings = jnp.asarray(self.rows)[visited(len(self.rows), self.batch_size, order_key, step)]
            return visit(self.tasks[0], strings, jax.random.fold_in(data_key, step))
        return self.sequences_of(self.outcomes(data_key, order_key, step, task))

    def sequences_of(self, outcomes: Int[Array, "batch"]) -> MaskedSequences:
        """Return what `outcomes` gave as sequences."""
        context, target = self.context_and_target(outcomes)
        return MaskedSequences(jnp.asarray(self._tables.tokens)[context], jnp.zeros_like(context), target)

    def multisets(
        self, data_key: Key[Array, ""], order_key: Key[Array, ""], step: Int[Array, ""], task: Int[Array, ""]
    ) -> MaskedMultisets:
        """Return the same batch as multisets."""
        if not self.tabled:
            return count(self.sequences(data_key, order_key, step, task), self.tasks[0].vocabulary)
        return self.multisets_of(self.outcomes(data_key, order_key, step, task))

    def multisets_of(self, outcomes: Int[Array, "batch"]) -> MaskedMultisets:
        """Return what `outcomes` gave as multisets."""
        (context, target), vocabulary = self.context_and_target(outcomes), self.tasks[0].vocabulary
        counts, size = jnp.asarray(self._tables.counts), len(context)
        if counts.shape[1] > size:
            return MaskedMultisets(counts[:, context], jax.nn.one_hot(target, vocabulary, axis=0) / size)
        visits = jnp.zeros(counts.size).at[target * counts.shape[1] + context].add(1)
        return MaskedMultisets(counts, visits.reshape(counts.shape) / size)

    @property
    def context_counts(self) -> Float[np.ndarray, "vocabulary contexts"]:
        """Occurrences of each symbol in each context that outcomes number, the mask included."""
        return self._tables.counts

    @functools.cached_property
    def _tables(self) -> "_Tables":
        return _tables(self.tasks)

    def outcomes(
        self, data_key: Key[Array, ""], order_key: Key[Array, ""], step: Int[Array, ""], task: Int[Array, ""]
    ) -> Int[Array, "batch"]:
        """Return one number for what each visit of a step's batch gives, of tasks that are tabled."""
        tables = self._tables
        zeros_of_string = self.rows.shape[1] - self.rows.sum(1)
        zeros = jnp.asarray(zeros_of_string)[visited(len(self.rows), self.batch_size, order_key, step)]
        word = jax.random.bits(jax.random.fold_in(data_key, step), zeros.shape, jnp.uint32)
        by_zeros, cells = tables.threshold.shape[1:]
        low_bits = WORD_BITS - (cells.bit_length() - 1)
        cell = (task * by_zeros + zeros) * cells + (word >> low_bits).astype(jnp.int32)
        is_alias = (word & np.uint32(2**low_bits - 1)) >= jnp.asarray(tables.threshold).ravel()[cell]
        return jnp.asarray(tables.outcome).ravel()[2 * cell + is_alias]

    def context_and_target(self, outcomes: Int[Array, "batch"]) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
        """Return the number of the context and the target of each outcome."""
        return outcomes // self.tasks[0].vocabulary, outcomes % self.tasks[0].vocabulary


class _Tables(NamedTuple):
    """Alias tables by task and number of zeros in the string, and the contexts that their outcomes name.

    outcome: of a cell and of its alias: the context's number times the vocabulary, plus the target.
    """

    threshold: UInt32[np.ndarray, "tasks zeros cells"]
    outcome: Int[np.ndarray, "tasks zeros cells 2"]
    tokens: Int[np.ndarray, "contexts length"]
    counts: Float[np.ndarray, "vocabulary contexts"]


def _tables(tasks: Sequence[EXor]) -> _Tables:
    """Tabulate what a visit to a string can give, for each task and each number of zeros."""
    first = tasks[0]
    cells = max(2, 1 << (most_outcomes(first) - 1).bit_length())
    threshold = np.zeros((len(tasks), first.bits + 1, cells), np.uint32)
    outcome = np.zeros((len(tasks), first.bits + 1, cells, 2), np.int32)
    for number, task in enumerate(tasks):
        contexts = all_contexts(task, ordered=False)
        zeros_of_context = np.isin(contexts.tokens, task.spellings["zero"]).sum(1) + (contexts.bit == 0)
        joint = over_all_strings(task, contexts)[:, None] * contexts.target
        for zeros in range(1, first.bits + 1):
            context, target = np.nonzero((zeros_of_context == zeros)[:, None] & (joint > 0))
            threshold[number, zeros], alias = alias_table(joint[context, target], cells)
            codes = np.zeros(cells, np.int32)
            codes[: len(context)] = context * task.vocabulary + target
            outcome[number, zeros] = np.stack([codes, codes[alias]], axis=1)
    return _Tables(threshold, outcome, contexts.tokens, occurrences(contexts.tokens, first.vocabulary))
