"""The pace of a run, from which the time left is estimated."""

from collections.abc import Hashable
from typing import NamedTuple

AGREEMENT = 4 / 3  # chunks agree if one takes at most a third longer than the other


class _Chunk(NamedTuple):
    """Units of work, and the seconds they took."""

    units: float
    seconds: float

    def agrees(self, other: "_Chunk") -> bool:
        """Return whether both take the same time per unit, within a third."""
        fast, slow = sorted(each.seconds / each.units for each in (self, other))
        return slow <= AGREEMENT * fast

    def joined(self, other: "_Chunk") -> "_Chunk":
        """Return both as one."""
        return _Chunk(self.units + other.units, self.seconds + other.seconds)


class Pace:
    """Seconds per unit of work, such as a step, of the compiled programs of a run.

    The first chunks of a program are short and slow. Its pace is known from the first two chunks in a row that agree.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, _Chunk | None] = {}
        self._known: dict[Hashable, _Chunk] = {}

    def begin(self, program: Hashable) -> None:
        """Add a program, before it is compiled."""
        self._last.setdefault(program, None)

    def add(self, program: Hashable, units: float, seconds: float) -> None:
        """Add a chunk of a program."""
        if not units or not seconds:
            return
        chunk, before = _Chunk(units, seconds), self._last.get(program)
        if program in self._known:
            self._known[program] = self._known[program].joined(chunk)
        elif before is not None and chunk.agrees(before):
            self._known[program] = chunk.joined(before)
        self._last[program] = chunk

    def end(self, program: Hashable) -> None:
        """Forget a program that has ended before its pace was known."""
        if program not in self._known:
            self._last.pop(program, None)

    @property
    def seconds(self) -> float | None:
        """Seconds per unit over all programs, None unless the pace of every one is known."""
        if not self._known or self._known.keys() != self._last.keys():
            return None
        return sum(each.seconds for each in self._known.values()) / sum(each.units for each in self._known.values())
