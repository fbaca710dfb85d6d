"""A finished run, as it is read to be compared: nothing in it is changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiejax.lab.reporting.finding import is_claims
from tiejax.lab.runs.run_directory import RESULTS, RunDirectory
from tiejax.lab.settings.command_line import BadInput


class FinishedRun(NamedTuple):
    """A finished run. settings: resolved, without those that change no result. results: the body of results.json."""

    label: str
    folder: Path
    study: str
    settings: Mapping[str, Any]
    results: Mapping[str, Any]


def read(folders: Sequence[Path], labels: Sequence[str]) -> list[FinishedRun]:
    """Return finished runs of one study; raises BadInput."""
    runs = [_read(folder, label) for folder, label in zip(folders, labels, strict=True)]
    first = runs[0]
    for run in runs[1:]:
        if run.study != first.study:
            raise BadInput(f"runs: must be of one study, {first.folder} is of {first.study}, {run.folder} of {run.study}")
    if "claims" not in first.results:
        raise BadInput(f"runs: those of {first.study} make no claims that could be compared")
    for run in runs:
        if not is_claims(run.results.get("claims")):
            raise BadInput(f"{run.folder / RESULTS}: holds no claims as a run writes them")
    return runs


def _read(folder: Path, label: str) -> FinishedRun:
    made = RunDirectory.opened(folder)
    results = RunDirectory.results(folder, made)
    if results is None:
        raise BadInput(f"{folder}: its run has not finished; go on with it by its command and --resume")
    return FinishedRun(label, folder, made.study, made.settings, results)
