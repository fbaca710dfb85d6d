"""Finished runs of one study side by side: settings that differ, and the result of every run for every claim."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.comparison.settings import SCRIPT
from tiejax.lab.reporting.finding import is_claims
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import reserve_and_finish
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.manifest import differing
from tiejax.lab.runs.run_directory import RESULTS, RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import function_of
from tiejax.lab.studies.compare import page
from tiejax.lab.studies.compare.settings import ACROSS, STUDY, labels
from tiejax.statistics.claims import assess
from tiejax.statistics.sign_flips import is_constant
from tiejax.system.json_values import plain

SHOWN = 12  # characters of a digest
CLAIM_FIELDS = (
    "family", "kind", "goal", "estimand", "unit", "n", "estimate", "interval", "interval_adjusted", "p_adjusted", "margin",
    "equivalence", "smallest_detectable", "look", "last_look", "verdict", "one_arm",
)  # fmt: skip


def run(launched: Launched, console: Console) -> int:
    """Compare runs; return the exit status."""
    folders = launched.settings.folders
    results = plain(compare(read(folders, labels(folders))))
    return reserve_and_finish(STUDY, launched, console, results, page.plot_all(results), page.page, page.finding(results))


class FinishedRun(NamedTuple):
    """A finished run.

    settings: resolved, without those that do not affect results. results: the content of results.json. subject: what else its
    models depend on: of a comparison of one's own model its name, the unit of its loss, digests of data and script.
    """

    label: str
    folder: Path
    study: str
    settings: Mapping[str, Any]
    results: Mapping[str, Any]
    subject: Mapping[str, Any]


def read(folders: Sequence[Path], labels: Sequence[str]) -> list[FinishedRun]:
    """Return the finished runs in `folders`; raises BadInput unless all are of one study that makes claims."""
    runs = [_read(folder, label) for folder, label in zip(folders, labels, strict=True)]
    first = runs[0]
    for run in runs[1:]:
        if run.study != first.study:
            raise BadInput(
                f"runs: expected runs of one study, but {first.folder} is a run of {first.study} and {run.folder} one of "
                f"{run.study}"
            )
    if "claims" not in first.results:
        raise BadInput(f"runs: runs of {first.study} make no claims that could be compared")
    for run in runs:
        if not is_claims(run.results.get("claims")):
            raise BadInput(f"{run.folder / RESULTS}: its claims have an unexpected format; run the study again")
    return runs


def _read(folder: Path, label: str) -> FinishedRun:
    manifest = RunDirectory.opened(folder)
    results = RunDirectory.results(folder, manifest)
    if results is None:
        raise BadInput(f"{folder}: the run has not finished; continue it with its command and --resume")
    digests = {"data": manifest.text, "script": manifest.files.get(SCRIPT)}
    subject = {"name": results.get("name"), "unit": results.get("unit")}
    subject |= {name: digest and digest[:SHOWN] for name, digest in digests.items()}
    return FinishedRun(label, folder, manifest.study, manifest.settings, results, subject)


def compare(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return the content of results.json: runs, settings that differ as `{name: [value of each run]}`, and claims."""
    return {
        "experiment": "compare",
        "study": runs[0].study,
        "runs": {run.label: _about(run) for run in runs},
        "settings": differing([{**run.subject, **run.settings} for run in runs]),
        "claims": compare_claims(runs),
        "across": claims_across(runs),
    }


def claims_across(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return the rows of the claims about all runs together, one family, if their study has any."""
    entry = ACROSS.get(runs[0].study)
    return [] if entry is None else list(assess(function_of(entry)([(run.settings, run.results) for run in runs])))


def _about(run: FinishedRun) -> dict[str, Any]:
    return {"folder": str(run.folder), "seeds": len(run.results["seeds"]), "excluded_seeds": run.results["excluded_seeds"]}


def compare_claims(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return all claims with one row for each run, None for a run that does not make the claim, or makes it in another unit."""
    by_run = [{(claim["id"], claim["unit"]): claim for claim in run.results["claims"]} for run in runs]
    statements = {name: claim["statement"] for claims in by_run for name, claim in claims.items()}

    def row(claim: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if claim is None:
            return None
        return {field: claim[field] for field in CLAIM_FIELDS} | {"effect": effect(claim)}

    return [
        {"id": name[0], "statement": statement, "rows": [row(claims.get(name)) for claims in by_run]}
        for name, statement in statements.items()
    ]


def effect(claim: Mapping[str, Any]) -> float | None:
    """Return the mean of a claim's differences over their standard deviation; None without variance or differences."""
    differences = np.asarray(claim["differences"], dtype=float)
    if len(differences) < 2 or is_constant(differences):
        return None
    return float(differences.mean() / differences.std(ddof=1))
