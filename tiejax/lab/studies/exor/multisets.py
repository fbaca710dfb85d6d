"""Visits to EXor strings as multisets of symbols, each visit sampled from one 32-bit word.

Spelling a string and masking one of its bits has few outcomes: the multiset of the remaining symbols and the symbol under the
mask. Strings with the same number of zeros have the same distribution of outcomes. So there is one alias table per number of
zeros, which maps a word to an outcome. The distribution is that of `batches.visit`; the samples differ.

A batch of multisets has one column per visit or, if the task has at most as many multisets, one column per multiset weighted by
its number of visits: two representations of one batch.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from tiejax.lab.studies.exor.batches import MaskedSequences, sequences, visited
from tiejax.lab.studies.exor.contexts import MAX_OUTCOMES, all_contexts, most_outcomes, over_all_strings
from tiejax.lab.studies.exor.task import EXor

WORD_BITS = 32


class MaskedMultisets(NamedTuple):
    """Masked multisets and their targets.

    counts: occurrences of each symbol, including the mask. asked: fraction of the batch that has this multiset with this symbol
    under the mask; the fractions sum to 1.
    """

    counts: Float[Array, "vocabulary multisets"]
    asked: Float[Array, "vocabulary multisets"]


def count(batch: MaskedSequences, vocabulary: int) -> MaskedMultisets:
    """Return the multisets of a batch of sequences, one column each."""
    counts = jnp.sum(jax.nn.one_hot(batch.tokens, vocabulary, axis=0), axis=2)
    return MaskedMultisets(counts, jax.nn.one_hot(batch.target, vocabulary, axis=0) / len(batch.target))


def occurrences(tokens: Int[np.ndarray, "sequences length"], vocabulary: int) -> Float[np.ndarray, "vocabulary sequences"]:
    """Return the number of occurrences of each symbol in each sequence."""
    return np.stack([(tokens == symbol).sum(1) for symbol in range(vocabulary)]).astype(float)


# The visits of a batch: the outcome of each as an integer, or sequences where there are no alias tables.
Visits = Int[Array, " batch"] | MaskedSequences


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Visits to a set of strings, as functions of keys, step and task index.

    tasks: the distributions to sample from, by index; they must use the same symbols.
    batch_size: as in `batches.sequences`. ordered: whether the model sees the order of the symbols, so that it needs sequences.
    Raises ValueError if the tasks use different symbols, or if there are several and a string has more than 1,024 outcomes.
    (A single such task is sampled string by string.)
    """

    tasks: Sequence[EXor]
    rows: Int[np.ndarray, "strings bits"]
    batch_size: int | None = None
    ordered: bool = False

    def __post_init__(self) -> None:
        first = self.tasks[0]
        if any((task.bits, task.used, task.vocabulary) != (first.bits, first.used, first.vocabulary) for task in self.tasks):
            raise ValueError("all tasks of a sampler must use the same symbols")
        if len(self.tasks) > 1 and not self.tabled:
            raise ValueError(f"{most_outcomes(first)} outcomes per string exceed the limit of alias tables, {MAX_OUTCOMES}")

    @property
    def tabled(self) -> bool:
        """Whether visits are sampled from alias tables."""
        return not self.ordered and most_outcomes(self.tasks[0]) <= MAX_OUTCOMES

    def visits(self, data_key: Key[Array, ""], order_key: Key[Array, ""], step: Int[Array, ""], task: Int[Array, ""]) -> Visits:
        """Return the visits of a step's batch."""
        if not self.tabled:
            return sequences(self.tasks[0], self.rows, self.batch_size, data_key, order_key, step)
        tables = _tables(tuple(self.tasks))
        zeros_of_string = self.rows.shape[1] - self.rows.sum(1)
        zeros = jnp.asarray(zeros_of_string)[visited(len(self.rows), self.batch_size, order_key, step)]
        word = jax.random.bits(jax.random.fold_in(data_key, step), zeros.shape, jnp.uint32)
        by_zeros, cells = tables.threshold.shape[1:]
        low_bits = WORD_BITS - (cells.bit_length() - 1)
        cell = (task * by_zeros + zeros) * cells + (word >> low_bits).astype(jnp.int32)
        is_alias = (word & np.uint32(2**low_bits - 1)) >= jnp.asarray(tables.threshold).ravel()[cell]
        return jnp.asarray(tables.outcome).ravel()[2 * cell + is_alias]


def as_sequences(tasks: Sequence[EXor], visits: Visits) -> MaskedSequences:
    """Return visits as sequences: of each multiset, the representative that starts with the mask."""
    if isinstance(visits, MaskedSequences):
        return visits
    context, target = visits // tasks[0].vocabulary, visits % tasks[0].vocabulary
    return MaskedSequences(jnp.asarray(_tables(tuple(tasks)).tokens)[context], jnp.zeros_like(context), target)


def as_multisets(tasks: Sequence[EXor], visits: Visits) -> MaskedMultisets:
    """Return visits as multisets."""
    vocabulary = tasks[0].vocabulary
    if isinstance(visits, MaskedSequences):
        return count(visits, vocabulary)
    context, target = visits // vocabulary, visits % vocabulary
    # The tables outlive a change of jax_enable_x64, which would leave them in another precision.
    counts, size = jnp.asarray(_tables(tuple(tasks)).counts, jnp.result_type(float)), len(context)
    if counts.shape[1] > size:
        return MaskedMultisets(counts[:, context], jax.nn.one_hot(target, vocabulary, axis=0) / size)
    number = jnp.zeros(counts.size).at[target * counts.shape[1] + context].add(1)
    return MaskedMultisets(counts, number.reshape(counts.shape) / size)


class _Tables(NamedTuple):
    """Alias tables by task and number of zeros in the string, and the contexts that their outcomes refer to.

    outcome: the outcomes of a cell and of its alias, each encoded as context index * vocabulary + target.
    """

    threshold: UInt32[np.ndarray, "tasks zeros cells"]
    outcome: Int[np.ndarray, "tasks zeros cells 2"]
    tokens: Int[np.ndarray, "contexts length"]
    counts: Float[np.ndarray, "vocabulary contexts"]


@functools.cache
def _tables(tasks: tuple[EXor, ...]) -> _Tables:
    """Build the alias tables of the outcomes of a visit to a string, for each task and number of zeros."""
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


def alias_table(
    probability: Float[np.ndarray, " outcomes"], cells: int
) -> tuple[UInt32[np.ndarray, " cells"], Int[np.ndarray, " cells"]]:
    """Return an alias table (Walker, 1977; Vose, 1991), which samples from a discrete distribution by two look-ups per word.

    The high bits of a 32-bit word choose a cell k. Low bits below the cell's threshold select outcome k, others its alias.
    Probabilities are multiples of 2^-32.

    cells: a power of two, at least the number of outcomes; otherwise raises ValueError.
    """
    if cells & (cells - 1) or cells < len(probability):
        raise ValueError(f"cells: expected a power of two >= {len(probability)}, got {cells}")
    words = _words(probability, cells)
    size = 2**WORD_BITS // cells
    threshold, alias = np.full(cells, size), np.arange(cells)
    small = [k for k in range(cells) if words[k] < size]
    large = [k for k in range(cells) if words[k] > size]
    while small:
        poor, rich = small.pop(), large[-1]
        threshold[poor], alias[poor] = words[poor], rich
        words[rich] -= size - words[poor]
        if words[rich] <= size:
            large.pop()
        if words[rich] < size:
            small.append(rich)
    # `size` itself may not fit in 32 bits; where the alias is the cell itself, `size - 1` is equivalent.
    return np.minimum(threshold, size - 1).astype(np.uint32), np.where(threshold == size, np.arange(cells), alias)


def _words(probability: np.ndarray, cells: int) -> np.ndarray:
    """Return the number of 32-bit words for each outcome: rounded down, the remaining words given to the largest remainders."""
    exact = np.zeros(cells)
    exact[: len(probability)] = probability / probability.sum() * 2.0**WORD_BITS
    words = np.floor(exact).astype(np.int64)
    left = 2**WORD_BITS - int(words.sum())
    words[np.argsort(words - exact, kind="stable")[:left]] += 1
    return words
