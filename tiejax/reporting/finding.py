"""What was found, in a sentence or two made from the verdicts: how a report begins."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tiejax.reporting.words import number

VERDICTS = {"supported": "Supported", "contradicted": "Contradicted", "undecided": "Undecided"}


def finding(claims: Sequence[Mapping[str, Any]], lead: Sequence[str]) -> list[str]:
    """Return the verdict on each leading claim that was tested, and how many claims came out how.

    claims: rows as `assess` gives them. lead: ids of the claims that answer the page's question, the most important first.
    """
    if not claims:
        return ["No claim could be tested."]
    by_id = {row["id"]: row for row in claims}
    lines = [_sentence(by_id[name]) for name in lead if name in by_id]
    counts = Counter(row["verdict"] for row in claims)
    told = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    total = "The one claim is" if len(claims) == 1 else f"Of {len(claims)} claims"
    lines.append(f"{total} {', '.join(told)}." if len(claims) > 1 else f"{total} {told[0].split(' ')[1]}.")
    return lines


def _sentence(row: Mapping[str, Any]) -> str:
    p = "" if row["p_adjusted"] is None else f", adjusted p {number(row['p_adjusted'])}"
    return f"{VERDICTS[row['verdict']]}: {row['statement']} ({row['statistic']}: {number(row['estimate'])}{p})"
