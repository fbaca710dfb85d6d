"""Formatting of numbers for consoles and pages."""

from collections.abc import Mapping, Sequence
from typing import Any


def duration(seconds: float) -> str:
    """Format seconds as 42 s, 3 min 05 s or 2 h 07 min."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{seconds} s"
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def share(value: float, digits: int = 0) -> str:
    """Format a share, 0 to 1, as a percentage with `digits` decimals: "84 %"."""
    return f"{100 * value:.{digits}f} %"


def count_true(found: Sequence[bool]) -> str:
    """Format the number and the share of true entries: "12 of 32 (38 %)"."""
    return count_and_share(sum(found), len(found))


def count_and_share(count: int, total: int) -> str:
    """Format `count` of `total` with its share: "12 of 32 (38 %)"; without a share if `total` is 0."""
    return f"{count} of {total} ({share(count / total)})" if total else f"{count} of {total}"


def counted(number: int, thing: str) -> str:
    """Format a count with its noun, whose plural ends in s: "1 seed", "2 seeds"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def number(value: float | None) -> str:
    """Format a number with three significant digits; None as a dash."""
    return "-" if value is None else f"{value:.3g}"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Format the numbers of a claim: estimate, interval, adjusted p, effect size, n."""
    interval = row["interval"]
    return [
        number(row["estimate"]),
        f"{number(interval[0])} to {number(interval[1])}" if interval else "-",
        number(row["p_adjusted"]),
        number(row["effect_size"]),
        str(row["n"]),
    ]
