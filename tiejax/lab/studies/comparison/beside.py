"""Runs beside each other: the settings in which they differ, and what each says of every claim."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiejax.lab.runs.manifest import differing
from tiejax.lab.studies.comparison.finished_run import FinishedRun

OF_CLAIM = ("estimate", "interval", "p_adjusted", "effect_size", "n", "verdict")


def compare(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return the body of results.json: runs, settings `{name: [value a run]}` that differ, claims with a row for each run."""
    return {
        "experiment": "comparison",
        "study": runs[0].study,
        "runs": {run.label: _about(run) for run in runs},
        "settings": differing([run.settings for run in runs]),
        "claims": claims_of(runs),
    }


def _about(run: FinishedRun) -> dict[str, Any]:
    return {"folder": str(run.folder), "seeds": len(run.results["seeds"]), "excluded_seeds": run.results["excluded_seeds"]}


def claims_of(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return every claim of any run, with what each run says of it, None where it makes no such claim."""
    statements = {claim["id"]: claim["statement"] for run in runs for claim in run.results["claims"]}
    by_run = [{claim["id"]: claim for claim in run.results["claims"]} for run in runs]

    def of(claim: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if claim is None else {field: claim[field] for field in OF_CLAIM}

    return [
        {"id": name, "statement": statement, "rows": [of(claims.get(name)) for claims in by_run]}
        for name, statement in statements.items()
    ]


def verdicts(claim: Mapping[str, Any]) -> list[str]:
    """Return the verdict of each run that makes this claim."""
    return [row["verdict"] for row in claim["rows"] if row is not None]


def at_odds(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of claims that one run supports and another contradicts."""
    return [claim["id"] for claim in claims if {"supported", "contradicted"} <= set(verdicts(claim))]
