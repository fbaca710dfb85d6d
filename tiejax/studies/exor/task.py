"""EXor: bit strings with a parity token, each bit spelled by a draw, one bit masked; and what can be computed exactly.

Everything here is numpy and needs no jax, so that a configuration can be checked before jax is imported.
Source: Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610), and the protocol of its published package.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

SPLITS = ("train", "validation", "test")
SPLIT_SEED = 14
MAX_BITS = 16
MAX_CONTEXTS = 2**20
MAX_OUTCOMES = 1024

# (zero, one): probabilities of the spellings of the bit 0 and of the bit 1.
VARIANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "main": ((0.1, 0.9), (0.5, 0.5)),
    "dh": ((1.0, 0.0), (0.5, 0.5)),
    "no-dh": ((1.0, 0.0), (0.1, 0.9)),
}


@dataclasses.dataclass(frozen=True)
class EXor:
    """The task: `bits` bits per string; `zero` and `one` spell a bit 0 or 1 by their probabilities.

    Symbols: the spellings of 0, then those of 1, then even, odd, mask. Raises ValueError, naming the field, if the
    number of bits is not in 2..16 or a distribution is empty, negative or does not sum to 1.
    """

    bits: int = 7
    zero: tuple[float, ...] = VARIANTS["main"][0]
    one: tuple[float, ...] = VARIANTS["main"][1]

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits: must lie between 2 and {MAX_BITS}, got {self.bits}")
        for name, probabilities in (("zero", self.zero), ("one", self.one)):
            if not probabilities:
                raise ValueError(f"{name}: needs at least one probability, got none")
            if not all(math.isfinite(p) and p >= 0 for p in probabilities):
                raise ValueError(f"{name}: probabilities must be finite and not negative, got {list(probabilities)}")
            if abs(sum(probabilities) - 1) > 1e-6:
                raise ValueError(f"{name}: must sum to 1, got {list(probabilities)} with sum {sum(probabilities):.6g}")

    @property
    def spellings(self) -> dict[str, tuple[int, ...]]:
        """Symbols that spell each bit, unused ones (probability 0) included."""
        return {
            "zero": tuple(range(len(self.zero))),
            "one": tuple(range(len(self.zero), len(self.zero) + len(self.one))),
        }

    @property
    def used(self) -> dict[str, tuple[int, ...]]:
        """Symbols that spell each bit with a probability above 0."""
        probability = self.probability
        return {bit: tuple(s for s in symbols if probability[s] > 0) for bit, symbols in self.spellings.items()}

    @property
    def probability(self) -> tuple[float, ...]:
        """Probability of each spelling given its bit, by symbol."""
        return (*self.zero, *self.one)

    @property
    def even(self) -> int:
        return len(self.zero) + len(self.one)

    @property
    def odd(self) -> int:
        return self.even + 1

    @property
    def mask(self) -> int:
        return self.even + 2

    @property
    def vocabulary(self) -> int:
        return self.even + 3

    @property
    def length(self) -> int:
        """Tokens of a sequence: the bits and their parity."""
        return self.bits + 1


def strings(bits: int) -> Int[np.ndarray, "strings bits"]:
    """Return 0 .. 2^bits - 2 as rows of binary digits, most significant first; the string of all ones is left out."""
    numbers = np.arange(2**bits - 1)
    return ((numbers[:, None] >> np.arange(bits - 1, -1, -1)) & 1).astype(np.int32)


def train_size(bits: int) -> int:
    """Return the number of strings in the training split, 90 % rounded down."""
    return (2**bits - 1) * 9 // 10


def split(bits: int) -> dict[str, Int[np.ndarray, "strings bits"]]:
    """Return the published split: strings in numeric order, shuffled once by `random.Random(14)`; 90 %, 10 %, the rest.

    Both shares are rounded down: 114, 12 and 1 strings of 7 bits. Short strings may leave validation empty.
    """
    rows = list(strings(bits))
    random.Random(SPLIT_SEED).shuffle(rows)
    train = train_size(bits)
    validation = len(rows) // 10
    parts = rows[:train], rows[train : train + validation], rows[train + validation :]
    return {name: np.array(part, dtype=np.int32).reshape(-1, bits) for name, part in zip(SPLITS, parts, strict=True)}


def bayes(task: EXor, rows: Int[np.ndarray, "strings bits"]) -> tuple[float, float]:
    r"""Return the accuracy and the cross-entropy (nats) of the best possible predictor on these strings.

    The other bits and the parity fix the masked bit b, so p(symbol | context) is the distribution that spells b:

        accuracy = E_b[max_s p(s | b)],    cross-entropy = E_b[-sum_s p(s | b) ln p(s | b)],

    with b uniform over all positions of all strings. NaN for an empty split.
    """
    if len(rows) == 0:
        return math.nan, math.nan
    share_one = float(rows.mean())
    accuracy = cross_entropy = 0.0
    for share, probabilities in ((1 - share_one, task.zero), (share_one, task.one)):
        accuracy += share * max(probabilities)
        cross_entropy -= share * sum(p * math.log(p) for p in probabilities if p > 0)
    return accuracy, cross_entropy


@dataclasses.dataclass(frozen=True)
class Contexts:
    """Every context a split can show, with its probability: expected risks are sums over these rows.

    tokens, position: a masked sequence and where its mask stands. bit: the bit that was masked, which the context fixes.
    weight: probability of each context in each split (rows sum to 1; NaN where a split is empty).
    target: probability of each symbol at the mask.
    """

    tokens: Int[np.ndarray, "contexts length"]
    position: Int[np.ndarray, "contexts"]
    bit: Int[np.ndarray, "contexts"]
    weight: Float[np.ndarray, "splits contexts"]
    target: Float[np.ndarray, "contexts vocabulary"]


def count_contexts(task: EXor, ordered: bool) -> int:
    """Return how many rows `contexts` would have, without building them."""
    zeros, ones = len(task.used["zero"]), len(task.used["one"])
    total = 0
    for k in range(1, task.bits + 1):  # k zero bits; k = 0 is the missing string of all ones
        if ordered:
            masked_zero = k * zeros ** (k - 1) * ones ** (task.bits - k)
            masked_one = (task.bits - k) * zeros**k * ones ** max(task.bits - k - 1, 0)
            total += math.comb(task.bits, k) * (masked_zero + masked_one)
        else:
            total += _multisets(k - 1, zeros) * _multisets(task.bits - k, ones)
            total += _multisets(k, zeros) * _multisets(task.bits - k - 1, ones)
    return total


def most_outcomes(task: EXor) -> int:
    """Return the largest number of different (multiset, target) pairs that visits to one string can give."""
    zeros, ones = len(task.used["zero"]), len(task.used["one"])
    return max(
        zeros * _multisets(k - 1, zeros) * _multisets(task.bits - k, ones)
        + ones * _multisets(k, zeros) * _multisets(task.bits - k - 1, ones)
        for k in range(1, task.bits + 1)
    )


def _multisets(size: int, kinds: int) -> int:
    return math.comb(size + kinds - 1, kinds - 1) if size >= 0 else 0


def contexts(task: EXor, ordered: bool) -> Contexts:
    """Enumerate every context of the three splits.

    ordered: tell sequences apart by the order of their symbols. A model without positional information cannot, so one
    sequence then stands for its multiset of symbols: 161 contexts instead of 56,896 for 7 bits and two spellings.
    Raises ValueError above 2^20 contexts.
    """
    number = count_contexts(task, ordered)
    if number > MAX_CONTEXTS:
        raise ValueError(f"{number} contexts are more than the {MAX_CONTEXTS} that are evaluated exactly")
    splits = split(task.bits)
    rows = list(_ordered_contexts(task, splits) if ordered else _multiset_contexts(task, splits))
    tokens, position, bit, weight = (np.array(column) for column in zip(*rows, strict=True))
    probability = np.zeros((2, task.vocabulary))
    for row, name in enumerate(("zero", "one")):
        symbols = list(task.spellings[name])
        probability[row, symbols] = np.array(task.probability)[symbols]
    return Contexts(tokens.astype(np.int32), position.astype(np.int32), bit.astype(np.int32), weight.T, probability[bit])


_Row = tuple[Sequence[int], int, int, Sequence[float]]


def _ordered_contexts(task: EXor, splits: dict[str, np.ndarray]) -> Iterator[_Row]:
    sizes = [len(rows) for rows in splits.values()]
    used, probability = (task.used["zero"], task.used["one"]), task.probability
    for member, rows in enumerate(splits.values()):
        for string in rows.tolist():
            parity = task.odd if sum(string) % 2 else task.even
            for position in range(task.bits):
                others = [used[bit] for place, bit in enumerate(string) if place != position]
                for spelled in itertools.product(*others):
                    weight = [math.nan if size == 0 else 0.0 for size in sizes]
                    weight[member] = math.prod(probability[s] for s in spelled) / (sizes[member] * task.bits)
                    tokens = (*spelled[:position], task.mask, *spelled[position:], parity)
                    yield tokens, position, string[position], weight


def _multiset_contexts(task: EXor, splits: dict[str, np.ndarray]) -> Iterator[_Row]:
    # A multiset is fixed by the spelled zeros, the spelled ones and the parity; the mask stands first in its sequence.
    by_zeros = [np.bincount(task.bits - rows.sum(1), minlength=task.bits + 1) for rows in splits.values()]
    sizes = [len(rows) for rows in splits.values()]
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
                    tokens = (task.mask, *spelled_zeros, *spelled_ones, parity)
                    yield tokens, 0, bit, [s * p_zeros * p_ones for s in share]


def _spelled(task: EXor, bit: str, size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every multiset of `size` spellings of a bit, with its multinomial probability."""
    for symbols in itertools.combinations_with_replacement(task.used[bit], size):
        ways = math.factorial(size)
        for symbol in set(symbols):
            ways //= math.factorial(symbols.count(symbol))
        yield symbols, ways * math.prod(task.probability[s] for s in symbols)


def asking_pairs(task: EXor, known: Contexts) -> dict[str, tuple[tuple[int, int], Float[np.ndarray, "contexts"]]]:
    """Return, for each bit with two used spellings or more, its likeliest and least likely symbol and who asks for them.

    The second entry is the probability of each context given that its mask hides this bit, over all strings of all splits.
    """
    sizes = np.array([len(rows) for rows in split(task.bits).values()])
    everywhere = sizes @ np.nan_to_num(known.weight)
    pairs = {}
    for bit, name in enumerate(("zero", "one")):
        ranked = sorted(task.used[name], key=lambda symbol: task.probability[symbol])
        if len(ranked) > 1:
            share = everywhere * (known.bit == bit)
            pairs[name] = (ranked[-1], ranked[0]), share / share.sum()
    return pairs
