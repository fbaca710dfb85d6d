"""Reading of finished runs for a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiejax.lab.reporting.finding import is_claims
from tiejax.lab.runs.run_directory import RESULTS, RunDirectory
from tiejax.lab.settings.command_line import BadInput


class FinishedRun(NamedTuple):
    """A finished run. settings: resolved, without those that do not affect results. results: the content of results.json."""

    label: str
    folder: Path
    study: str
    settings: Mapping[str, Any]
    results: Mapping[str, Any]


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
    return FinishedRun(label, folder, manifest.study, manifest.settings, results)
