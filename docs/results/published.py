"""Published runs: the part of a run that is kept in docs/results as JSON."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.runs.run_directory import RESULTS_FORMAT
from tiejax.statistics.claims import Claim, assess

Table = tuple[list[str], list[list[str]]]
ONE_BY_ONE = "Numbers: every "  # title of tables with a row per seed or per pair of words, which are not published
# The fields of claims that are published.
CLAIM_FIELDS = (
    "id", "statement", "family", "kind", "goal", "sign", "estimand", "unit", "differences", "outcomes", "n",
    "estimate", "interval", "interval_adjusted", "adjusted_level", "p", "p_adjusted", "skewness", "margin", "equivalence",
    "smallest_detectable", "seeds_needed", "look", "last_look", "verdict", "note", "one_arm",
)  # fmt: skip


def published_run(
    results: Mapping[str, Any], facts: Mapping[str, Any], tables: Mapping[str, Table], command: str, figure: str | None = None
) -> dict[str, Any]:
    """Return the published part of a run: claims, tables, timing and environment.

    results, facts: its results.json and environment.json. tables: the tables of its report, by title. command: the command
    that repeats the run (the recorded one contains machine-specific paths). figure: path of its main figure in the repository.
    """
    resumed = [str(later["git_commit"]) for later in facts.get("resumed", []) if later["git_commit"]]
    return {
        "study": results["experiment"],
        "format": results["format"],
        "command": command,
        "figure": figure,
        "commit": facts["git_commit"],
        "later_commits": [commit for commit in dict.fromkeys(resumed) if commit != facts["git_commit"]],
        "date": facts["date"][:10],
        "python": facts["python"],
        "versions": facts["versions"],
        "devices": facts["devices"],
        "resumed": len(facts.get("resumed", [])),
        "seeds": len(results["seeds"]),
        "excluded_seeds": results["excluded_seeds"],
        "timing": results["timing"],
        "claims": [{field: claim[field] for field in CLAIM_FIELDS if field in claim} for claim in results["claims"]],
        "tables": {
            title: {"columns": columns, "rows": rows}
            for title, (columns, rows) in {**tables, **_gate_table(results)}.items()
            if not title.startswith(ONE_BY_ONE)
        },
    }


def _gate_table(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the losses that the gate of a run compares, means over seeds in nats, below their title; empty without a gate."""
    if "gate" not in results:
        return {}
    losses = {"bigram model": results["gate"]["bigram"], **results["gate"]["losses"]}
    return {"Numbers: the gate": (["models", "loss"], [[name, f"{loss:.4f}"] for name, loss in losses.items()])}


def tested_again(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a published run whose claims, one family without looks, are tested again by the present rules.

    Everything that a test needs is in the rows: the differences and, of proportions, the outcomes.
    """
    rows = assess([_claim(row) for row in run["claims"]])
    return {
        **run,
        "format": RESULTS_FORMAT,
        "claims": [{field: row[field] for field in CLAIM_FIELDS if field in row} for row in rows],
    }


def _claim(row: Mapping[str, Any]) -> Claim:
    same = ("id", "statement", "estimand", "sign", "kind", "goal", "family", "unit", "margin", "one_arm")
    outcomes = row["outcomes"] and (np.array(row["outcomes"][0], bool), np.array(row["outcomes"][1], bool))
    return Claim(differences=np.array(row["differences"], float), outcomes=outcomes, **{name: row[name] for name in same})


def dumps(value: Any, indent: str = "") -> str:
    """Format JSON with a line for each entry, and lists without lists or mappings on one line."""
    deeper = f"{indent} "
    if isinstance(value, Mapping) and value:
        entries = [f"{deeper}{json.dumps(key)}: {dumps(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        return "[\n" + ",\n".join(f"{deeper}{dumps(item, deeper)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)
