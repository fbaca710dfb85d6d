"""EXor: bit strings with a parity token, in which each bit is spelled at random and one bit is masked.

NumPy only, so that settings can be checked before JAX is imported.
Source: Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610), and the protocol of its published package.
"""

import dataclasses
import math
import random

import numpy as np
from jaxtyping import Int

from tiejax.system.visible import cut

SPLITS = ("train", "validation", "test")
SPLIT_SEED = 14
MAX_BITS = 16

# (zero, one): probabilities of the spellings of bit 0 and of bit 1. All but `half` are published.
VARIANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "main": ((0.1, 0.9), (0.5, 0.5)),
    "dh": ((1.0, 0.0), (0.5, 0.5)),
    "no-dh": ((1.0, 0.0), (0.1, 0.9)),
    "half": ((0.5, 0.5), (0.5, 0.5)),
}


@dataclasses.dataclass(frozen=True)
class EXor:
    """The task: `bits` bits per string; `zero` and `one` are the probabilities of the spellings of bits 0 and 1.

    Symbols: the spellings of 0, then the spellings of 1, then even, odd, mask. Raises ValueError, naming the field, if the
    number of bits is not in 2..16, or a distribution is empty, has negative entries or does not sum to 1.
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
                raise ValueError(f"{name}: probabilities must be finite and not negative, got {cut(list(probabilities))}")
            if abs(sum(probabilities) - 1) > 1e-6:
                raise ValueError(f"{name}: must sum to 1, got {cut(list(probabilities))} with sum {sum(probabilities):.6g}")

    @property
    def spellings(self) -> dict[str, tuple[int, ...]]:
        """Symbols that spell each bit, including unused ones (probability 0)."""
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
    def asked(self) -> tuple[int, ...]:
        """Symbols that are ever asked for: the used spellings of both bits."""
        return (*self.used["zero"], *self.used["one"])

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
        """Number of tokens in a sequence: the bits and their parity."""
        return self.bits + 1

    def imbalance(self, bit: str) -> float:
        """Return the largest |ln(p_i / p_j)| over used spellings of a bit: 0 where DH holds, NaN for a single spelling."""
        p = [self.probability[symbol] for symbol in self.used[bit]]
        return math.log(max(p) / min(p)) if len(p) > 1 else math.nan

    @property
    def holding(self) -> str | None:
        """The bit whose spellings are equally likely, so that DH holds for them; `one` if both are, None if neither is."""
        return next((bit for bit in ("one", "zero") if self.imbalance(bit) < 1e-9), None)

    @property
    def violating(self) -> str | None:
        """The bit whose spellings differ most in probability, so that DH fails for them; None if DH holds for both bits."""
        bits = [bit for bit in ("zero", "one") if self.imbalance(bit) >= 1e-9]
        return max(bits, key=self.imbalance) if bits else None

    @property
    def names(self) -> list[str]:
        """The names of the symbols: 0a, 0b, ..., 1a, 1b, ..., even, odd, mask."""

        def spelled(bit: str, number: int) -> list[str]:
            return [f"{bit}{chr(ord('a') + k) if number <= 26 else f'.{k}'}" for k in range(number)]

        return [*spelled("0", len(self.zero)), *spelled("1", len(self.one)), "even", "odd", "mask"]


def strings(bits: int) -> Int[np.ndarray, "strings bits"]:
    """Return 0 .. 2^bits - 2 as rows of binary digits, most significant first, without the string of all ones."""
    numbers = np.arange(2**bits - 1)
    return ((numbers[:, None] >> np.arange(bits - 1, -1, -1)) & 1).astype(np.int32)


def train_size(bits: int) -> int:
    """Return the number of strings in the training split, 90 % rounded down."""
    return (2**bits - 1) * 9 // 10


def split(bits: int) -> dict[str, Int[np.ndarray, "strings bits"]]:
    """Return the published split: strings in numeric order, shuffled by `random.Random(14)`; 90 %, 10 % and the remainder.

    Both shares are rounded down: 114, 12 and 1 strings for 7 bits. With few bits the validation split can be empty.
    """
    rows = list(strings(bits))
    random.Random(SPLIT_SEED).shuffle(rows)
    train = train_size(bits)
    validation = len(rows) // 10
    parts = rows[:train], rows[train : train + validation], rows[train + validation :]
    return {name: np.array(part, dtype=np.int32).reshape(-1, bits) for name, part in zip(SPLITS, parts, strict=True)}


def bayes_risk(task: EXor, rows: Int[np.ndarray, "strings bits"]) -> tuple[float, float]:
    r"""Return the accuracy and the cross-entropy (nats) of the Bayes predictor on these strings.

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
