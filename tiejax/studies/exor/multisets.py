"""Visits to EXor strings as multisets of symbols, each drawn from one 32-bit word.

Spelling a string and masking one of its bits has few outcomes, told apart by the multiset that is left and the symbol under the
mask; strings with equally many zeros have them with equal probabilities. An alias table (Walker, 1977; Vose, 1991) turns a
word into an outcome in two look-ups: its high bits choose a cell, its low bits one of the cell's two outcomes.
Probabilities are whole multiples of 2^-32. The law is that of `exor_batches.visit`; the draws themselves are others.

A batch of multisets has one column a visit, or, where the task has no more multisets than that, one column for each of them
with the number of its visits as weight: two ways to write one batch.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from tiejax.studies.exor.batches import Batch, visit, visited
from tiejax.studies.exor.task import MAX_OUTCOMES, EXor, contexts, most_outcomes, split

WORD_BITS = 32


class Multisets(NamedTuple):
    """Masked multisets, and how often each asks for each symbol.

    counts: occurrences of each symbol, the mask included. asked: share of the batch that has this multiset and this symbol
    under the mask; sums to 1.
    """

    counts: Float[Array, "vocabulary multisets"]
    asked: Float[Array, "vocabulary multisets"]


def alias_table(
    probability: Float[np.ndarray, "outcomes"], cells: int
) -> tuple[UInt32[np.ndarray, "cells"], Int[np.ndarray, "cells"]]:
    """Return, for each cell k, how many of its 2^32 / cells words mean outcome k, and the outcome that the others mean.

    cells: a power of two, at least the number of outcomes. Raises ValueError if it is not.
    """
    if cells & (cells - 1) or cells < len(probability):
        raise ValueError(f"{cells} cells: a power of two is needed, and at least {len(probability)}")
    # Whole numbers of words that sum to 2^32: rounded down, the words left over to the largest remainders.
    exact = np.zeros(cells)
    exact[: len(probability)] = probability / probability.sum() * 2.0**WORD_BITS
    words = np.floor(exact).astype(np.int64)
    left = 2**WORD_BITS - int(words.sum())
    words[np.argsort(words - exact, kind="stable")[:left]] += 1
    size = 2**WORD_BITS // cells
    own, other = np.full(cells, size), np.arange(cells)
    small = [k for k in range(cells) if words[k] < size]
    large = [k for k in range(cells) if words[k] > size]
    while small:
        poor, rich = small.pop(), large[-1]
        own[poor], other[poor] = words[poor], rich
        words[rich] -= size - words[poor]
        if words[rich] <= size:
            large.pop()
        if words[rich] < size:
            small.append(rich)
    # `size` itself may not fit 32 bits; with the cell's own outcome on both sides, a word less says the same.
    return np.minimum(own, size - 1).astype(np.uint32), np.where(own == size, np.arange(cells), other)


def count(batch: Batch, vocabulary: int) -> Multisets:
    """Return the multisets of a batch of sequences, one column each."""
    counts = jnp.sum(jax.nn.one_hot(batch.tokens, vocabulary, axis=0), axis=2)
    return Multisets(counts, jax.nn.one_hot(batch.target, vocabulary, axis=0) / len(batch.target))


def occurrences(tokens: Int[np.ndarray, "sequences length"], vocabulary: int) -> Float[np.ndarray, "vocabulary sequences"]:
    """Return how often each symbol occurs in each sequence."""
    return np.stack([(tokens == symbol).sum(1) for symbol in range(vocabulary)]).astype(float)


@dataclasses.dataclass(frozen=True)
class MultisetSampler:
    """Visits to a set of strings, for a model that sees no order. Its batches are functions of keys, step and task number.

    tasks: the distributions a batch can be asked for, by number; they must use the same symbols.
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
        """Whether visits are drawn from alias tables."""
        return most_outcomes(self.tasks[0]) <= MAX_OUTCOMES

    @functools.cached_property
    def _tables(self) -> "_Tables":
        return _tables(self.tasks)

    def _outcomes(self, data_key: jax.Array, order_key: jax.Array, step: jax.Array, task: jax.Array) -> tuple[Any, Any]:
        """Return context number and target of each visit."""
        tables = self._tables
        zeros = self.rows.shape[1] - self.rows.sum(1)
        kind = jnp.asarray(zeros)[visited(len(self.rows), self.batch_size, order_key, step)]
        word = jax.random.bits(jax.random.fold_in(data_key, step), kind.shape, jnp.uint32)
        low_bits = WORD_BITS - (tables.own.shape[-1].bit_length() - 1)
        kinds, cells = tables.own.shape[1:]
        place = (task * kinds + kind) * cells + (word >> low_bits).astype(jnp.int32)
        is_other = (word & np.uint32(2**low_bits - 1)) >= jnp.asarray(tables.own).ravel()[place]
        outcome = jnp.asarray(tables.outcome).ravel()[2 * place + is_other]
        return outcome // self.tasks[0].vocabulary, outcome % self.tasks[0].vocabulary

    def batch(self, data_key: Key[Array, ""], order_key: Key[Array, ""], step: Int[Array, ""], task: Int[Array, ""]) -> Batch:
        """Return the batch of a step as sequences, each the first of its multiset's with the mask in front."""
        if not self.tabled:
            strings = jnp.asarray(self.rows)[visited(len(self.rows), self.batch_size, order_key, step)]
            return visit(self.tasks[0], strings, jax.random.fold_in(data_key, step))
        context, target = self._outcomes(data_key, order_key, step, task)
        return Batch(jnp.asarray(self._tables.tokens)[context], jnp.zeros_like(context), target)

    def multisets(
        self, data_key: Key[Array, ""], order_key: Key[Array, ""], step: Int[Array, ""], task: Int[Array, ""]
    ) -> Multisets:
        """Return the same batch as multisets."""
        vocabulary = self.tasks[0].vocabulary
        if not self.tabled:
            return count(self.batch(data_key, order_key, step, task), vocabulary)
        context, target = self._outcomes(data_key, order_key, step, task)
        counts, size = jnp.asarray(self._tables.counts), len(context)
        if counts.shape[1] > size:
            return Multisets(counts[:, context], jax.nn.one_hot(target, vocabulary, axis=0) / size)
        visits = jnp.zeros(counts.size).at[target * counts.shape[1] + context].add(1)
        return Multisets(counts, visits.reshape(counts.shape) / size)


class _Tables(NamedTuple):
    """Alias tables by task and number of zeros; an outcome is its context's number times the vocabulary plus its target."""

    own: UInt32[np.ndarray, "tasks kinds cells"]
    outcome: Int[np.ndarray, "tasks kinds cells 2"]
    tokens: Int[np.ndarray, "contexts length"]
    counts: Float[np.ndarray, "vocabulary contexts"]


def _tables(tasks: Sequence[EXor]) -> _Tables:
    first = tasks[0]
    sizes = np.array([len(rows) for rows in split(first.bits).values()])
    cells = max(2, 1 << (most_outcomes(first) - 1).bit_length())
    own = np.zeros((len(tasks), first.bits + 1, cells), np.uint32)
    outcome = np.zeros((len(tasks), first.bits + 1, cells, 2), np.int32)
    for number, task in enumerate(tasks):
        known = contexts(task, ordered=False)
        everywhere = sizes @ np.nan_to_num(known.weight)
        zeros = np.isin(known.tokens, task.spellings["zero"]).sum(1) + (known.bit == 0)
        joint = everywhere[:, None] * known.target
        for kind in range(1, first.bits + 1):
            context, target = np.nonzero((zeros == kind)[:, None] & (joint > 0))
            own[number, kind], other = alias_table(joint[context, target], cells)
            codes = np.zeros(cells, np.int32)
            codes[: len(context)] = context * task.vocabulary + target
            outcome[number, kind] = np.stack([codes, codes[other]], axis=1)
    return _Tables(own, outcome, known.tokens, occurrences(known.tokens, first.vocabulary))
