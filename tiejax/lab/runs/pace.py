"""The pace of a run, from which the time left is estimated."""

from collections.abc import Hashable

AGREEMENT = 4 / 3  # chunks agree if one takes at most a third longer per unit than the other


class Pace:
    """Seconds per unit of work, such as a step, of the compiled programs of a run.

    The first chunks of a program are short and slow. Its pace is known from the first two chunks in a row that agree.
    """

    def __init__(self) -> None:
        # Program -> units of work and the seconds they took: of the last chunk (if there is one), and of all since two agreed.
        self._last: dict[Hashable, tuple[float, float] | None] = {}
        self._known: dict[Hashable, tuple[float, float]] = {}

    def begin(self, program: Hashable) -> None:
        """Add a program, before it is compiled."""
        self._last.setdefault(program, None)

    def add(self, program: Hashable, units: float, seconds: float) -> None:
        """Add a chunk of a program."""
        if not units or not seconds:
            return
        since, before = self._known.get(program), self._last.get(program)
        if since is None and before is not None:
            fast, slow = sorted((seconds / units, before[1] / before[0]))
            since = before if slow <= AGREEMENT * fast else None
        if since is not None:
            self._known[program] = since[0] + units, since[1] + seconds
        self._last[program] = units, seconds

    def end(self, program: Hashable) -> None:
        """Forget a program that has ended before its pace was known."""
        if program not in self._known:
            self._last.pop(program, None)

    @property
    def seconds(self) -> float | None:
        """Seconds per unit over all programs, None unless the pace of every one is known."""
        if not self._known or self._known.keys() != self._last.keys():
            return None
        units, seconds = map(sum, zip(*self._known.values(), strict=True))
        return seconds / units
