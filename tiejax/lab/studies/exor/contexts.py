"""All contexts of EXor with their exact probabilities.

NumPy only: settings are checked against the number of contexts before JAX is imported.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from tiejax.lab.studies.exor.task import EXor, split

MAX_CONTEXTS = 2**20  # limit of the exact risk
MAX_OUTCOMES = 1024  # limit, per string, of alias tables


@dataclasses.dataclass(frozen=True)
class Contexts:
    """All contexts of the splits with their probabilities: expected risks are sums over these rows.

    tokens, position: a masked sequence and the position of its mask. bit: the masked bit, which the context determines.
    weight: probability of each context in each split (rows sum to 1; NaN for an empty split).
    target: probability of each symbol at the mask.
    """

    tokens: Int[np.ndarray, "contexts length"]
    position: Int[np.ndarray, " contexts"]
    bit: Int[np.ndarray, " contexts"]
    weight: Float[np.ndarray, "splits contexts"]
    target: Float[np.ndarray, "contexts vocabulary"]


def count_contexts(task: EXor, ordered: bool) -> int:
    """Return the number of rows of `all_contexts` without building them."""
    zeros, ones = len(task.used["zero"]), len(task.used["one"])
    total = 0
    for k in range(1, task.bits + 1):  # k zero bits; k = 0 is the missing string of all ones
        if ordered:
            masked_zero = k * zeros ** (k - 1) * ones ** (task.bits - k)
            masked_one = (task.bits - k) * zeros**k * ones ** max(task.bits - k - 1, 0)
            total += math.comb(task.bits, k) * (masked_zero + masked_one)
        else:
            total += _count_multisets(k - 1, zeros) * _count_multisets(task.bits - k, ones)
            total += _count_multisets(k, zeros) * _count_multisets(task.bits - k - 1, ones)
    return total


def most_outcomes(task: EXor) -> int:
    """Return the largest number of distinct (multiset, target) pairs over the visits to one string."""
    zeros, ones = len(task.used["zero"]), len(task.used["one"])
    return max(
        zeros * _count_multisets(k - 1, zeros) * _count_multisets(task.bits - k, ones)
        + ones * _count_multisets(k, zeros) * _count_multisets(task.bits - k - 1, ones)
        for k in range(1, task.bits + 1)
    )


def _count_multisets(size: int, kinds: int) -> int:
    """Return the number of multisets of `size` elements of `kinds` kinds."""
    return math.comb(size + kinds - 1, kinds - 1) if size >= 0 else 0


def all_contexts(task: EXor, ordered: bool) -> Contexts:
    """Enumerate every context of the three splits.

    ordered: distinguish sequences by the order of their symbols. A model without positional information cannot, so one
    sequence then represents its multiset of symbols: 161 contexts instead of 56,896 for 7 bits and two spellings.
    Raises ValueError if there are more than 2^20 contexts.
    """
    number = count_contexts(task, ordered)
    if number > MAX_CONTEXTS:
        raise ValueError(f"{number:,} contexts exceed the limit of the exact risk, {MAX_CONTEXTS:,}")
    splits = split(task.bits)
    rows = list(_ordered_contexts(task, splits) if ordered else _multiset_contexts(task, splits))
    tokens, position, bit, weight = (np.array(column) for column in zip(*rows, strict=True))
    probability = np.zeros((2, task.vocabulary))
    for row, symbols in enumerate(map(list, task.spellings.values())):
        probability[row, symbols] = np.array(task.probability)[symbols]
    return Contexts(tokens.astype(np.int32), position.astype(np.int32), bit.astype(np.int32), weight.T, probability[bit])


# A row of `Contexts`: tokens, position, bit, and weight in each split.
_Row = tuple[Sequence[int], int, int, Sequence[float]]


def _ordered_contexts(task: EXor, splits: dict[str, np.ndarray]) -> Iterator[_Row]:
    sizes = [len(rows) for rows in splits.values()]
    used, probability, mask = (task.used["zero"], task.used["one"]), task.probability, task.mask
    for member, rows in enumerate(splits.values()):
        for string in rows.tolist():
            parity = task.odd if sum(string) % 2 else task.even
            for position in range(task.bits):
                others = [used[bit] for place, bit in enumerate(string) if place != position]
                for spelled in itertools.product(*others):
                    weight = [math.nan if size == 0 else 0.0 for size in sizes]
                    weight[member] = math.prod(probability[s] for s in spelled) / (sizes[member] * task.bits)
                    tokens = (*spelled[:position], mask, *spelled[position:], parity)
                    yield tokens, position, string[position], weight


def _multiset_contexts(task: EXor, splits: dict[str, np.ndarray]) -> Iterator[_Row]:
    # The spelled zeros, the spelled ones and the parity determine a multiset; its sequence starts with the mask.
    by_zeros = [np.bincount(task.bits - rows.sum(1), minlength=task.bits + 1) for rows in splits.values()]
    sizes, mask = [len(rows) for rows in splits.values()], task.mask
    for zeros in range(1, task.bits + 1):
        ones = task.bits - zeros
        parity = task.odd if ones % 2 else task.even
        for bit, masked in enumerate((zeros, ones)):
            if masked == 0:
                continue
            share = [
                math.nan if size == 0 else counts[zeros] / size * masked / task.bits
                for counts, size in zip(by_zeros, sizes, strict=True)
            ]
            left_zeros, left_ones = zeros - (bit == 0), ones - (bit == 1)
            for spelled_zeros, p_zeros in _spelled(task, "zero", left_zeros):
                for spelled_ones, p_ones in _spelled(task, "one", left_ones):
                    tokens = (mask, *spelled_zeros, *spelled_ones, parity)
                    yield tokens, 0, bit, [s * p_zeros * p_ones for s in share]


def _spelled(task: EXor, bit: str, size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield every multiset of `size` spellings of a bit with its multinomial probability."""
    for symbols in itertools.combinations_with_replacement(task.used[bit], size):
        ways = math.factorial(size)
        for symbol in set(symbols):
            ways //= math.factorial(symbols.count(symbol))
        yield symbols, ways * math.prod(task.probability[s] for s in symbols)


def over_all_strings(task: EXor, contexts: Contexts) -> Float[np.ndarray, " contexts"]:
    """Return the expected number of occurrences of each context in one visit to every string of every split."""
    strings = np.array([len(rows) for rows in split(task.bits).values()])
    return np.asarray(strings @ np.nan_to_num(contexts.weight))


def asking_pairs(task: EXor, contexts: Contexts) -> dict[str, tuple[tuple[int, int], Float[np.ndarray, " contexts"]]]:
    """Return, for each bit with at least two used spellings, its likeliest and least likely symbol, and context probabilities.

    These are the probabilities of each context given that the bit is masked, over all strings of all splits.
    """
    visits = over_all_strings(task, contexts)
    pairs = {}
    for bit, name in enumerate(("zero", "one")):
        ranked = sorted(task.used[name], key=lambda symbol: task.probability[symbol])
        if len(ranked) > 1:
            asking = visits * (contexts.bit == bit)
            pairs[name] = (ranked[-1], ranked[0]), asking / asking.sum()
    return pairs
