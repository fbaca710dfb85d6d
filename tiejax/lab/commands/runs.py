"""`tiejax runs`: the run directories under a folder, with study, state, settings and what was found."""

import contextlib
import dataclasses
import importlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tiejax.lab.reporting.finding import is_claims, tally
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import KIND, Manifest, NoManifest, differing, read, settings_of
from tiejax.lab.runs.run_directory import RESULTS, RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine

STUDIES = ("exor", "untying", "text_mlm", "layer_tying", "embedding_coupling", "diagnosis", "comparison")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where to look.

    Args:
        folder: what run directories are looked for in, however deep
    """

    folder: str | None = None


COMMAND = CommandLine(
    description="List the run directories under a folder: which study made each, whether it has finished, the settings in "
    "which it differs from the study's defaults, and how its claims came out.",
    example="Example: PROGRAM runs/exor",
    switches={},
    positional={"folder": "what run directories are looked for in, however deep (default: runs)"},
)


def main(argv: Sequence[str]) -> int:
    """List runs; return the exit status. Raises BadInput."""
    settings, _ = command_line.parse(Settings, COMMAND, argv)
    folder = Path(settings.folder or "runs").expanduser()
    if not folder.is_dir():
        raise BadInput(f"{folder}: is no folder; name one that holds run directories")
    console, number = Console(), 0
    for run in runs_under(folder):
        number += 1
        for line in described(run):
            console.say(line)
    if not number:
        console.say(f"no run directory under {folder}")
    return 0


def runs_under(folder: Path) -> Iterator[Path]:
    """Return the run directories under a folder, in the order of their names; what a run holds is not looked at."""
    for path, folders, files in os.walk(folder):
        if KIND in files:
            folders.clear()
            yield Path(path)
        folders.sort()


def described(folder: Path) -> list[str]:
    """Return what is to be said of a run directory, line by line."""
    try:
        made = read(folder)
    except NoManifest as reason:
        return [f"{folder}  {reason}"]
    except OSError as error:
        return [f"{folder}  {KIND} cannot be read: {error.strerror}"]
    lines = [f"{folder}  {made.study}, {'finished' if RESULTS in made.files else 'unfinished'}"]
    if changed := changed_settings(made):
        lines.append(f"    settings: {', '.join(f'{name} {json.dumps(value)}' for name, value in changed.items())}")
    try:
        results = RunDirectory.results(folder, made)
    except BadInput:
        return [*lines, f"    {RESULTS} is damaged; the run's command and --resume make it again"]
    # A comparison has the claims of others.
    claims = None if results is None or made.study == "comparison" else results.get("claims")
    return [*lines, f"    {tally(claims)}"] if is_claims(claims) else lines


def changed_settings(made: Manifest) -> dict[str, Any]:
    """Return the settings of a run that are not what its study takes where nothing is asked for."""
    if made.study not in STUDIES:
        return {}
    study = importlib.import_module(f"tiejax.lab.studies.{made.study}.settings").STUDY
    default = study.settings()
    with contextlib.suppress(BadInput):  # some must be asked for something
        default = default.resolved()
    found = differing([made.settings, settings_of(default, study.may_change)])
    return {name: value for name, (value, _) in found.items() if name in made.settings}
