"""Verdict on tying the embeddings of a run, as sentences, from the results of its diagnosis."""

from collections.abc import Mapping
from typing import Any

# What a violated distributional hypothesis means for a set of pairs, by its case.
FAILS = {
    "fails: same meaning": "the symbols mean the same but are not used alike: in the theory of Bertolotti and Cazzola, without "
    "a bias of the logits, a shared table would have to place them both close together and far apart",
    "fails: same use": "the symbols are used alike but do not mean the same",
}
# The set of pairs whose symbols spell different bits. A larger residual there than LEARNT, chosen by hand, is taken as not
# having learnt which bit a context asks for.
ACROSS, LEARNT = "a 0 and a 1", 2.0
UNTESTED = "This describes these members; whether tying costs anything is not tested."


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Return whether and how the distributional hypothesis fails for any set of pairs, and for how many members of each arm."""
    failing: dict[tuple[str, str], list[str]] = {}
    for name, rows in results["equivalence"].items():
        for row in rows:
            case, members = max(row["cases"].items(), key=lambda item: item[1])
            if case in FAILS:
                failing.setdefault((row["set"], case), []).append(f"{name} ({members} of {sum(row['cases'].values())})")
    found = "In no set of pairs do most members pass the thresholds for a violation of the distributional hypothesis."
    if failing:
        sets = ", ".join(dict.fromkeys(pairs for pairs, _ in failing))
        found = f"In most members, the thresholds for a violation of the distributional hypothesis are passed for: {sets}."
    lines = [f"{found} {UNTESTED}"]
    unlearnt = [
        name
        for name, rows in results["equivalence"].items()
        if any(row["set"] == ACROSS and (row["residual_rms"] or 0) > LEARNT for row in rows)
    ]
    if unlearnt:
        lines.append(
            f"In most members of {', '.join(unlearnt)} the residual of {ACROSS} is above {LEARNT:g}, which is taken as not "
            "having learnt which bit a context asks for: their results describe the models, not the task."
        )
    return lines + [f"{pairs}: {FAILS[case]}: {', '.join(names)}" for (pairs, case), names in failing.items()]
