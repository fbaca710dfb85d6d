"""Formatting of numbers for consoles and pages."""

import math
from collections.abc import Sequence

Table = tuple[list[str], list[list[str]]]  # columns, rows


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


def seeds_words(seeds: Sequence[int]) -> str:
    """Format a list of seeds: "seed 3", "seeds 0 to 7", "seeds 3, 7, 11"."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def number(value: float | None) -> str:
    """Format a number with three significant digits, from 1,000 on without an exponent; None as a dash."""
    if value is None:
        return "-"
    rounded = f"{value:.3g}"
    return f"{float(rounded):,.0f}" if 1000 <= abs(float(rounded)) < math.inf else rounded


def formatted(value: float | None, form: str = ".4f") -> str:
    """Format a number by a format specification; one that is None, as results.json writes it, or non-finite as a dash."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def interval_words(interval: Sequence[float | None] | None) -> str:
    """Format an interval as "0.1 to 0.5"; None as a dash, and an infinite end, which is None, in words."""
    if interval is None:
        return "-"
    low, high = interval
    if low is None or high is None:
        return f"above {number(low)}" if high is None else f"below {number(high)}"
    return " to ".join(_ends(low, high))


def _ends(low: float | None, high: float | None) -> list[str]:
    """Format the ends of an interval: an end that is 0 may differ from it by rounding."""
    hair = 0.0 if low is None or high is None else 1e-9 * (high - low)
    return [number(0.0 if end is not None and abs(end) < hair else end) for end in (low, high)]


def subject(words: str) -> str:
    """Return a noun phrase as the subject of a sentence, with a comma after it if it contains one."""
    return f"{words}," if ", " in words else words


def in_brackets(interval: Sequence[float | None] | None) -> str:
    """Format an interval as " [0.1, 0.5]", to follow a number; None as ""."""
    return f" [{', '.join(_ends(*interval))}]" if interval else ""
