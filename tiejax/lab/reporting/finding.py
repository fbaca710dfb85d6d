"""Sentences that summarise verdicts, for the beginning of a report.

`opening` says what is known about a claim, in fixed words; `tally` counts the verdicts of all claims.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from tiejax.lab.reporting.words import (
    agrees,
    counted,
    estimate_words,
    in_brackets,
    is_equivalent,
    later_within,
    later_words,
    not_decided,
    seen_from,
    subject,
    with_unit,
)

VERDICTS = ("supported", "contradicted", "undecided")
PAIRS = tuple(re.compile(rf"(.+){begin}({one}) - ({one}){end}") for begin, one, end in (
    (r" \(", r"(?:(?! - )[^()])+", r"\)"),
    (", ", "(?:(?! - )[^(),])+", ""),
))  # fmt: skip
LESS = re.compile(r"(.+?),? \(?less ([\d.]+)\)?")
EARLIER = "earlier rules"  # the rules by which rows of results.json of earlier formats were tested


def is_current(row: Mapping[str, Any]) -> bool:
    """Return whether a claim was tested by the present rules; rows of earlier versions have no `one_arm`."""
    return "one_arm" in row


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
        return _sentence(f'{_within(row)} ({estimate_words(row)}, {seeds}); the claim "{statement}" is {decided}')
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

    results: of a run with `gate` and `bigram`, the losses of its bigram models by name; both are "" for earlier runs.
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
