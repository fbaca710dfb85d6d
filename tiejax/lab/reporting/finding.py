"""Sentences that summarise verdicts, for the beginning of a report.

`opening` says what is known about a claim, in fixed words; `tally` counts the verdicts of all claims.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from tiejax.lab.reporting.words import (
    agrees,
    counted,
    estimate_words,
    is_equivalent,
    later_within,
    later_words,
    undecided,
    with_unit,
)

VERDICTS = ("supported", "contradicted", "undecided")
EARLIER = "earlier rules"  # the rules by which rows of results.json of earlier formats were tested


def is_current(row: Mapping[str, Any]) -> bool:
    """Return whether a claim was tested by the present rules; rows of earlier versions have no `one_arm`."""
    return "one_arm" in row


def opening(row: Mapping[str, Any]) -> str:
    """Return a sentence about a claim: its estimate and interval if it is decided, or what its seeds would have shown.

    row: as returned by `assess`.
    """
    subject = row["estimand"][:1].upper() + row["estimand"][1:]
    seeds = counted(row["n"], "seed")
    found = estimate_words(row)
    decided = row["verdict"] + later_words(row, row["look"], agrees(row)) if row["verdict"] in VERDICTS[:2] else ""
    if is_equivalent(row):
        sign = "" if row["goal"] == "equivalence" or not decided else f"; {decided}: it is not 0"
        within = f"{subject} differs from 0 by less than {with_unit(row['margin'], row)}{later_within(row)}"
        return f"{within}: it is {found} ({seeds}{sign})."
    if row["verdict"] == "undecided":
        return f"{subject}: {undecided(row)}."
    if row["verdict"] == "exploratory":
        return f"{subject} is {found} ({seeds}; exploratory, not tested)."
    if row["goal"] == "difference" or row["verdict"] == "contradicted":
        return f"{subject} is {found} ({seeds}): {decided}."
    side = "more than -" if row["sign"] > 0 else "less than "
    later = f" ({decided})" if decided != row["verdict"] else ""
    return f"{subject} is {side}{with_unit(row['margin'], row)}{later}: it is {found} ({seeds})."


def openings(claims: Sequence[Mapping[str, Any]], ids: Sequence[str], lead: str = "") -> str:
    """Return the opening sentences of the claims with these ids that are present, decided ones first, after `lead`."""
    by_id = {row["id"]: row for row in claims}
    rows = [by_id[name] for name in ids if name in by_id]
    rows.sort(key=lambda row: row["verdict"] not in ("supported", "contradicted"))
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
