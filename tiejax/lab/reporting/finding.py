"""What was found, in a sentence or two made from the verdicts: how a report begins.

A page knows what its claims mean, and says it: `sentence` joins a clause for each leading claim, chosen by its verdict,
and `tally` counts the verdicts of all claims.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from tiejax.lab.reporting.words import counted, number

VERDICTS = ("supported", "contradicted", "undecided")


@dataclasses.dataclass(frozen=True)
class Clause:
    """What each verdict on a claim means, as a part of a sentence; `{size}` is the size of the estimate.

    claim: its id. undecided: what stays open, as "whether it rains".
    """

    claim: str
    supported: str
    contradicted: str
    undecided: str

    def of(self, row: Mapping[str, Any]) -> str:
        """Return the words for a row as `assess` gives it."""
        words: str = getattr(self, row["verdict"])
        return words.format(size=number(None if row["estimate"] is None else abs(row["estimate"])))


def sentence(claims: Sequence[Mapping[str, Any]], clauses: Sequence[Clause], opening: str = "") -> str:
    """Return a sentence of the clauses whose claims were tested, after an opening such as "Where it is cold,"; or nothing.

    claims: rows as `assess` gives them. Claims that are undecided come last.
    """
    by_id = {row["id"]: row for row in claims}
    tested = [(clause.of(row), row["verdict"], row["n"]) for clause in clauses if (row := by_id.get(clause.claim))]
    return compose(tested, opening)


def compose(tested: Sequence[tuple[str, str, int]], opening: str = "") -> str:
    """Return a sentence of parts (words, verdict, number of seeds), as `sentence` does. Seeds are told where they change."""
    decided = [part for part in tested if part[1] != "undecided"]
    still_open = [part for part in tested if part[1] == "undecided"]
    parts, told = [], 0

    def told_once(seeds: int) -> str:
        return "" if seeds == told else f", {counted(seeds, 'seed')}"

    for words, verdict, seeds in decided:
        parts.append(f"{words} ({verdict}{told_once(seeds)})")
        told = seeds
    if still_open:
        questions = listed([words for words, *_ in still_open])
        parts.append(f"it stays open {questions} (undecided{told_once(still_open[0][2])})")
    if not parts:
        return ""
    whole = f"{opening} {listed(parts)}.".lstrip()
    return whole[0].upper() + whole[1:]


def listed(parts: Sequence[str]) -> str:
    """Write parts as "a, b, and c", and two as "a and b"."""
    return f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 2 else " and ".join(parts)


def is_claims(found: object) -> TypeGuard[list[dict[str, Any]]]:
    """Say whether these are claims as a run writes them: each has an id, a statement and a verdict."""
    return isinstance(found, list) and all(
        isinstance(row, Mapping) and all(isinstance(row.get(field), str) for field in ("id", "statement", "verdict"))
        for row in found
    )


def tally(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return how many claims came out how."""
    if not claims:
        return "No claim could be tested."
    counts = Counter(row["verdict"] for row in claims)
    if len(claims) == 1:
        return f"The one claim is {claims[0]['verdict']}."
    told = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"Of {len(claims)} claims, {', '.join(told)}."
