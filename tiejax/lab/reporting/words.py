"""Formatting of numbers for consoles and pages."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tiejax.system.rounding import next_multiple


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


def cells(row: Mapping[str, Any]) -> list[str]:
    """Format the numbers of a claim: estimate, 95 % interval, adjusted interval, adjusted p, n."""
    return [
        number(row["estimate"]),
        interval_words(row["interval"]),
        interval_words(row.get("interval_adjusted")),
        number(row["p_adjusted"]),
        str(row["n"]),
    ]


def with_unit(value: float | None, row: Mapping[str, Any]) -> str:
    """Format a number with the unit of a claim."""
    return f"{number(value)} {row.get('unit', '')}".rstrip()


def about(row: Mapping[str, Any]) -> str:
    """Describe the estimated quantity of a claim: its estimand, unit and margin, if the claim is about a margin."""
    if "kind" not in row:
        return str(row["statistic"])
    margin = "" if row["goal"] == "difference" else f"margin {number(row['margin'])}"
    more = ", ".join(filter(None, [row["unit"], margin]))
    return f"{row['estimand']} ({more})" if more else str(row["estimand"])


def undecided(row: Mapping[str, Any]) -> str:
    """Return what the seeds of an undecided claim would have shown, as the end of a sentence; "" if they cannot decide it."""
    most, margin = row["smallest_detectable"], with_unit(row["margin"], row)
    found = f"not decided with {counted(row['n'], 'seed')}"
    if most is None or row["note"]:
        return found
    if row["goal"] == "difference":
        return f"{found}, which would have shown {with_unit(most, row)} in four of five studies"
    if most >= row["margin"]:
        return f"{found}, which could not have shown it in four of five studies"
    inside = f"a value that is {with_unit(most, row)} inside the margin of {margin}"
    return f"{found}, which would have shown {inside} in four of five studies"


def not_decided(row: Mapping[str, Any]) -> str:
    """Return that a claim is not decided, its estimate, and how many seeds would decide it, as the end of a sentence."""
    found = f"not decided with {counted(row['n'], 'seed')}"
    if row["estimate"] is not None:
        plus = "+" if row["estimate"] > 0 else ""
        found += f": {subject(row['estimand'])} is {plus}{estimate_words(row)}"
    low, high = row["interval"] or (None, None)
    if row["goal"] == "difference" and ((low or 0) > 0 or (high or 0) < 0) and row["interval_adjusted"]:
        found += f", adjusted for all claims{in_brackets(row['interval_adjusted'])}"
    note = f"; {row['note'].partition(': ')[0]}" if row["note"] else ""
    if (row["seeds_needed"] or 0) <= row["n"]:
        return f"{found}{note}"
    tens = 10 ** max(len(str(row["seeds_needed"])) - 2, 0)
    seeds = next_multiple(row["seeds_needed"], tens)  # two digits
    true = with_unit(row["margin"] if row["goal"] == "difference" else 0, row)
    return f"{found}{note}; about {seeds:,} seeds would decide it if the true difference is {true}"


def is_equivalent(row: Mapping[str, Any]) -> bool:
    """Return whether the claim that the mean difference is closer to 0 than its margin is supported."""
    if row.get("goal") == "equivalence":
        return bool(row["verdict"] == "supported")
    return row["verdict"] != "exploratory" and (row.get("equivalence") or {}).get("verdict") == "supported"


def subject(words: str) -> str:
    """Return a noun phrase as the subject of a sentence, with a comma after it if it contains one."""
    return f"{words}," if ", " in words else words


def estimate_words(row: Mapping[str, Any], unit: bool = True) -> str:
    """Format the estimate of a claim, with its unit or without, and its interval: "0.3 nats [0.1, 0.5]"."""
    return f"{with_unit(row['estimate'], row) if unit else number(row['estimate'])}{in_brackets(row['interval'])}"


def in_brackets(interval: Sequence[float | None] | None) -> str:
    """Format an interval as " [0.1, 0.5]", to follow a number; None as ""."""
    return f" [{', '.join(_ends(*interval))}]" if interval else ""


def seen_from(estimate: float, interval: Sequence[float | None] | None) -> Sequence[float | None] | None:
    """Return the interval of |estimate|: the given one, or if the estimate is negative its mirror image."""
    if interval is None or estimate >= 0:
        return interval
    low, high = interval
    return high if high is None else -high, low if low is None else -low


def later_within(row: Mapping[str, Any]) -> str:
    """Return what `later_words` says about the decision that the mean is closer to 0 than the margin, in parentheses."""
    look = row["look"] if row["goal"] == "equivalence" else row["equivalence"]["look"]
    later = later_words(row, look, row["estimate"] is not None and abs(row["estimate"]) < row["margin"])
    return f" (decided{later})" if later else ""


def later_words(row: Mapping[str, Any], look: int, holds: bool) -> str:
    """Return when a claim was decided, and whether all seeds bear it out, as the end of a sentence; "" at the last look.

    holds: whether the estimates of all seeds agree with the decision.
    """
    if look >= row.get("last_look", look):
        return ""
    return f" with {look:,}" + ("" if holds else f"; all {row['n']:,} do not bear it out")


def agrees(row: Mapping[str, Any]) -> bool:
    """Return whether the estimate from all seeds has the sign, or lies on the side of the margin, that was decided."""
    value, margin, supported = row["estimate"], row["margin"] or 0.0, row["verdict"] == "supported"
    if value is None:
        return False
    if row["goal"] == "equivalence":
        return bool((abs(value) < margin) == supported)
    bound = 0.0 if row["goal"] == "difference" else -margin * row["sign"]
    return bool(((value - bound) * row["sign"] > 0) == supported)


def remarks(row: Mapping[str, Any]) -> str:
    """Return what an undecided claim would take, and its note; "" if there is nothing to say.

    A claim that was tested by the rules of an earlier version says so.
    """
    if "kind" not in row:
        return "Tested by earlier rules."
    parts = []
    if row["verdict"] == "undecided":
        parts.append(f"sign {undecided(row)}" if is_equivalent(row) else undecided(row))
        # With as many seeds, a claim about a margin is undecided only because the value may be near the margin.
        if (row["seeds_needed"] or 0) > row["n"]:
            parts[0] += f"; the margin, {with_unit(row['margin'], row)}, needs {counted(row['seeds_needed'], 'seed')}"
    elif later := later_words(row, row["look"], agrees(row)):
        parts.append(f"decided{later}; estimate and intervals are those of all {row['n']:,}")
    if is_equivalent(row) and row["goal"] == "difference":
        parts.append(f"closer to 0 than the margin, {with_unit(row['margin'], row)} (tested in a family of its own)")
    if row.get("skewness") is not None:
        parts.append(f"skewness {number(row['skewness'])}, so bootstrap-t must reject as well as sign flips")
    if row["note"]:
        parts.append(row["note"])
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts)
