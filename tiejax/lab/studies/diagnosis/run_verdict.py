"""Verdict on tying the embeddings of a run, as sentences, from the results of its diagnosis."""

from collections.abc import Mapping
from typing import Any

# What a violated distributional hypothesis means for a set of pairs, by its case.
FAILS = {
    "fails: same meaning": "the symbols mean the same but are not used alike: a shared table would have to place them both "
    "close together and far apart",
    "fails: same use": "the symbols are used alike but do not mean the same",
}
# The set of pairs whose symbols spell different bits. Models that solve EXor have a residual below LEARNT there; others exceed
# it by far.
ACROSS, LEARNT = "a 0 and a 1", 2.0


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Return whether and how the distributional hypothesis fails for any set of pairs, and for how many members of each arm."""
    failing: dict[tuple[str, str], list[str]] = {}
    for name, rows in results["equivalence"].items():
        for row in rows:
            case, members = max(row["cases"].items(), key=lambda item: item[1])
            if case in FAILS:
                failing.setdefault((row["set"], case), []).append(f"{name} ({members} of {sum(row['cases'].values())})")
    lines = ["No set of pairs violates the distributional hypothesis in most members: this is no evidence against tying."]
    if failing:
        sets = ", ".join(dict.fromkeys(pairs for pairs, _ in failing))
        lines = [f"The distributional hypothesis, which tying assumes, fails in most members for: {sets}."]
    unlearnt = [
        name
        for name, rows in results["equivalence"].items()
        if any(row["set"] == ACROSS and (row["residual_rms"] or 0) > LEARNT for row in rows)
    ]
    if unlearnt:
        lines.append(
            f"Most members of {', '.join(unlearnt)} have not learnt which bit a context asks for (residual of {ACROSS} above "
            f"{LEARNT:g}): their results describe the models, not the task."
        )
    return lines + [f"{pairs}: {FAILS[case]}: {', '.join(names)}" for (pairs, case), names in failing.items()]
