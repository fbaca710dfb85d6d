"""Claims in words: their numbers, remarks and, for the beginning of a report, sentences.

`opening` says what is known about a claim, in fixed words; `tally` counts the verdicts of all claims.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from tiejax.lab.reporting.words import counted, in_brackets, interval_words, number, subject

VERDICTS = ("supported", "contradicted", "undecided")
PAIRS = tuple(re.compile(rf"(.+){begin}({one}) - ({one}){end}") for begin, one, end in (
    (r" \(", r"(?:(?! - )[^()])+", r"\)"),
    (", ", "(?:(?! - )[^(),])+", ""),
))  # fmt: skip
LESS = re.compile(r"(.+?),? \(?less ([\d.]+)\)?")


def opening(row: Mapping[str, Any]) -> str:
    """Return a sentence about a claim that begins with the answer and says which claim it answers.

    A supported claim is stated, with its estimate; of a contradicted one, the estimate comes first, and the claim is quoted, as
    is an undecided claim.

    row: as returned by `assess`.
    """
    statement, seeds, verdict = row["statement"].rstrip("."), counted(row["n"], "seed"), row["verdict"]
    if verdict == "exploratory":
        return _sentence(f"{_answer(row)} ({seeds}; exploratory, not tested)")
    later = "" if verdict == "undecided" else later_words(row, row["look"], agrees(row))
    if is_equivalent(row):
        decided = {"undecided": "not decided"}.get(verdict, verdict) + (later if row["goal"] == "difference" else "")
        open_sign = "its sign is open: " if verdict == "undecided" else ""
        return _sentence(f'{_within(row)} ({estimate_words(row)}, {seeds}); {open_sign}the claim "{statement}" is {decided}')
    if verdict == "undecided":
        return _sentence(f'"{statement}" is {not_decided(row)}')
    seeds += "" if row["goal"] == "difference" else f", margin {with_unit(row['margin'], row)}"
    if verdict == "supported" and agrees(row):
        colon = ";" if ": " in statement else ":"
        return _sentence(f"{statement}{colon} {_answer(row, both=False)} ({seeds}; supported{later})")
    return _sentence(f'{_answer(row)} ({seeds}); the claim "{statement}" is {verdict}{later}')


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _answer(row: Mapping[str, Any], both: bool = True) -> str:
    """Return the estimate as a clause: by how much the first quantity is lower or higher, if the estimand names two.

    both: whether to name the second one, which the statement of a claim names as well.
    """
    what, first, second = _compared(row["estimand"])
    value = row["estimate"]
    if not second or not value:
        return f"{subject(row['estimand'])} is {estimate_words(row)}"
    size = f"{subject(what)} is {with_unit(abs(value), row)}"
    interval = in_brackets(seen_from(value, row["interval"]))
    if _is_number(second):
        of = f" for {first}" if first else ""
        return f"{size} {'below' if value < 0 else 'above'} {second}{of}{interval}"
    less, more = ("shorter", "longer") if row["kind"] == "time" else ("lower", "higher")
    return f"{size} {less if value < 0 else more} for {first}{f' than for {second}' if both else ''}{interval}"


def _within(row: Mapping[str, Any]) -> str:
    """Return that a difference is smaller than its margin, as a clause."""
    what, first, second = _compared(row["estimand"])
    margin = f"{with_unit(row['margin'], row)}{later_within(row)}"
    if first and not _is_number(second):
        return f"{subject(what)} differs by less than {margin} between {first} and {second}"
    return f"{subject(row['estimand'])} differs from 0 by less than {margin}"


def _is_number(words: str) -> bool:
    return words.replace(".", "", 1).isdigit()


def _compared(estimand: str) -> tuple[str, str, str]:
    """Split an estimand into a quantity and what it is of: "the loss (a - b)" or "the loss, a - b" into the loss, a and b.

    "The distance (less 1)" gives the distance, "" and 1; other estimands are returned whole, with "" and "".
    """
    for pattern in PAIRS:
        if pair := pattern.fullmatch(estimand):
            return pair[1], pair[2], pair[3]
    less = LESS.fullmatch(estimand)
    return (less[1], "", less[2]) if less else (estimand, "", "")


def openings(claims: Sequence[Mapping[str, Any]], ids: Sequence[str], lead: str = "") -> str:
    """Return the opening sentences of the claims with these ids that are present, decided ones first, after `lead`."""
    by_id = {row["id"]: row for row in claims}
    rows = [by_id[name] for name in ids if name in by_id]
    rows.sort(key=lambda row: row["verdict"] not in VERDICTS[:2])
    return " ".join([*filter(None, [lead]), *map(opening, rows)]) if rows else ""


def gate_sentences(results: Mapping[str, Any]) -> tuple[str, str]:
    """Return why no claim is tested, or "", and how models of masked tokens compare with bigram models.

    results: of a run with `gate` and `bigram`, the losses of its bigram models by name; both are "" without them.
    """
    if "bigram" not in results:
        return "", ""
    left, right, both = (f"{results['bigram'][name]:.3f}" for name in ("left", "right", "both"))
    ends = ", ".join(f"{name} models {'-' if loss is None else f'{loss:.3f}'}"
                     for name, loss in results["gate"]["losses"].items())  # fmt: skip
    return results["gate"]["failed"], (
        "Bigram models of the sentences that one seed reads predict a masked token with a loss of "
        f"{left} nats from the token on its left, {right} from that on its right, and {both} from both; mean final losses: "
        f"{ends}."
    )


def is_claims(found: object) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether these are claims as written by a run: each has an id, a statement and a verdict."""
    return isinstance(found, list) and all(
        isinstance(row, Mapping) and all(isinstance(row.get(field), str) for field in ("id", "statement", "verdict"))
        for row in found
    )


def tally(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence with the count of each verdict, and the number of exploratory claims."""
    counts = Counter(row["verdict"] for row in claims)
    exploratory = counts.pop("exploratory", 0)
    registered = sum(counts.values())
    more = f" {counted(exploratory, 'more claim')} {'is' if exploratory == 1 else 'are'} exploratory." if exploratory else ""
    if not registered:
        return f"No claim could be tested.{more}"
    if registered == 1:
        return f"The one claim is {next(iter(counts))}.{more}"
    words = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"Of {registered} claims, {', '.join(words)}.{more}"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Format the numbers of a claim: estimate, 95 % interval, adjusted interval, adjusted p, n."""
    return [
        number(row["estimate"]),
        interval_words(row["interval"]),
        interval_words(row["interval_adjusted"]),
        number(row["p_adjusted"]),
        str(row["n"]),
    ]


def with_unit(value: float | None, row: Mapping[str, Any]) -> str:
    """Format a number with the unit of a claim."""
    return f"{number(value)} {row['unit']}".rstrip()


def about(row: Mapping[str, Any]) -> str:
    """Describe the estimated quantity of a claim: its estimand, unit and margin, if the claim is about a margin."""
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
    if note or (row["seeds_needed"] or 0) <= row["n"]:  # a note on too few seeds says what is missing, whatever the margin
        return f"{found}{note}"
    tens = 10 ** max(len(str(row["seeds_needed"])) - 2, 0)
    seeds = -(-row["seeds_needed"] // tens) * tens  # rounded up to two digits
    true = with_unit(row["margin"] if row["goal"] == "difference" else 0, row)
    return f"{found}{note}; about {seeds:,} seeds would decide it if the true difference is {true}"


def is_equivalent(row: Mapping[str, Any]) -> bool:
    """Return whether the claim that the mean difference is closer to 0 than its margin is supported."""
    if row["goal"] == "equivalence":
        return bool(row["verdict"] == "supported")
    return row["verdict"] != "exploratory" and (row["equivalence"] or {}).get("verdict") == "supported"


def estimate_words(row: Mapping[str, Any], unit: bool = True) -> str:
    """Format the estimate of a claim, with its unit or without, and its interval: "0.3 nats [0.1, 0.5]"."""
    return f"{with_unit(row['estimate'], row) if unit else number(row['estimate'])}{in_brackets(row['interval'])}"


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
    if look >= row["last_look"]:
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
    """Return what an undecided claim would take, and its note; "" if there is nothing to say."""
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
    if row["skewness"] is not None:
        parts.append(f"skewness {number(row['skewness'])}, so bootstrap-t must reject as well as sign flips")
    if row["note"]:
        parts.append(row["note"])
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts)
