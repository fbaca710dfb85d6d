"""The symbols of an EXor task by meaning, and the bits for which the distributional hypothesis (DH) holds or fails."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tiejax.lab.studies.exor.task import EXor


@dataclasses.dataclass(frozen=True)
class Symbols:
    """The symbols of a task and the probabilities of the spellings.

    used: the spellings with a probability above 0, by bit (`zero`, `one`). probability: the probability of each spelling.
    """

    vocabulary: int
    even: int
    odd: int
    used: Mapping[str, Sequence[int]]
    probability: Sequence[float]

    @classmethod
    def of(cls, task: EXor) -> "Symbols":
        """Return the symbols of a task."""
        return cls(task.vocabulary, task.even, task.odd, task.used, task.probability)

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


def symbol_names(zero: int, one: int) -> list[str]:
    """Return the names of the symbols: 0a, 0b, ..., 1a, 1b, ..., even, odd, mask."""

    def spellings(bit: str, number: int) -> list[str]:
        return [f"{bit}{chr(ord('a') + k) if number <= 26 else f'.{k}'}" for k in range(number)]

    return [*spellings("0", zero), *spellings("1", one), "even", "odd", "mask"]
