"""`tiejax runs`: the run directories under a folder, with their settings and results."""

import contextlib
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tiejax.lab.commands.studies import NAMES, load
from tiejax.lab.comparison.settings import SCRIPT
from tiejax.lab.comparison.settings import Settings as ComparisonSettings
from tiejax.lab.reporting.finding import VERDICTS, is_claims, tally
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import KIND, Manifest, NoManifest, differing, read, settings_of
from tiejax.lab.runs.run_directory import RESULTS, RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.checks import looks_up_to, seed_list
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.system.visible import cut


@dataclasses.dataclass(frozen=True)
class Settings:
    """The folder whose runs are listed.

    Args:
        folder: folder that is searched for run directories, at any depth (default: runs)
    """

    folder: str | None = None


COMMAND = CommandLine(
    description="List the run directories under a folder: the study, whether the run has finished, the settings that differ "
    "from the defaults of the study, and how many of its claims (the statements that a study tests) are supported, "
    "contradicted or undecided.",
    example="Example: PROGRAM runs/exor.",
    switches={
        "json": "print a JSON array with an object for each run (path, study, state, settings, parts, looks, claims, damage, "
        "name)"
    },
    positional=("folder",),
)


@dataclasses.dataclass(frozen=True)
class Listed:
    """A run directory as it is listed; its fields are the keys of `--json`.

    study: None if it is unknown. state: "finished" or "unfinished", None if it is unknown. settings: those that differ from
    the defaults of the study. parts: number of seeds of each part that has begun, None if all seeds train together. looks:
    numbers of seeds at which claims are tested with --until decided, otherwise None. claims: number of claims with each
    verdict, exploratory ones included, None if there are no results or the study makes no claims. damage: which file cannot be
    used and what to do, None if no damage was found. name: what a finished comparison of one's own model calls that, otherwise
    None.
    """

    path: str
    study: str | None = None
    state: str | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    parts: list[int] | None = None
    looks: list[int] | None = None
    claims: dict[str, int] | None = None
    damage: str | None = None
    name: str | None = None


def main(argv: Sequence[str]) -> int:
    """List runs; return the exit status. Raises BadInput, or OSError if the folder cannot be read."""
    settings, switches = command_line.parse(Settings, COMMAND, argv)
    folder = Path(settings.folder or "runs").expanduser()
    if not folder.is_dir():
        problem = "is not a directory" if folder.exists() else "not found"
        raise BadInput(f"{cut(folder)}: {problem}; name a folder that holds run directories")
    os.scandir(folder).close()  # which os.walk would leave out in silence
    console, runs = Console(), map(describe, find_runs(folder))
    if switches["json"]:
        console.json([dataclasses.asdict(run) for run in runs])
        return 0
    found = False
    for run in runs:
        found = True
        for line in lines(run):
            console.say(line)
    if not found:
        console.say(f"no run directory under {folder}")
    return 0


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run directories under a folder, sorted by name, then the folders that cannot be read.

    Those inside other run directories are left out.
    """
    unread: list[Path] = []
    for path, folders, files in os.walk(folder, onerror=lambda error: unread.append(Path(error.filename))):
        if KIND in files:
            folders.clear()
            yield Path(path)
        folders.sort()
    yield from unread


def describe(folder: Path) -> Listed:
    """Return the list entry of a run directory."""
    path = str(folder)
    try:
        manifest = read(folder)
    except NoManifest as reason:
        return Listed(path, damage=str(reason))
    except OSError as error:
        return Listed(path, damage=f"{KIND} cannot be read: {error.strerror}")
    state = "finished" if RESULTS in manifest.files else "unfinished"
    run = Listed(path, manifest.study, state, changed_settings(manifest), *parts_and_looks(manifest))
    try:
        results = RunDirectory.results(folder, manifest)
    except BadInput as reason:
        return dataclasses.replace(run, damage=str(reason).removeprefix(f"{folder}/"))
    if results is None:
        return run
    if SCRIPT in manifest.files:
        run = dataclasses.replace(run, name=str(results.get("name")))
    # The claims in the results of `compare` are those of the compared runs.
    claims = None if manifest.study == "compare" else results.get("claims")
    if not is_claims(claims):
        return run
    counts = Counter(claim["verdict"] for claim in claims)
    return dataclasses.replace(run, claims={verdict: counts[verdict] for verdict in (*VERDICTS, "exploratory")})


def lines(run: Listed) -> Iterator[str]:
    """Yield the lines that describe a run."""
    if run.study is None:
        yield f"{run.path}  {run.damage}"
        return
    yield f"{run.path}  {run.study}{'' if run.name is None else f' of {run.name}'}, {run.state}"
    if run.settings:
        yield f"    settings: {', '.join(f'{name} {json.dumps(value)}' for name, value in run.settings.items())}"
    if run.looks is not None and run.parts is not None:
        trained, looks = sum(run.parts), ", ".join(f"{look:,}" for look in run.looks)
        yield f"    look {len(run.parts)} of {len(run.looks)} ({looks} seeds): {trained:,} seeds"
    elif run.parts is not None:
        yield f"    parts: {' + '.join(f'{seeds:,}' for seeds in run.parts)} seeds"
    if run.damage is not None:
        yield f"    {run.damage}"
    if run.claims is not None:
        counts = tally([{"verdict": verdict} for verdict, count in run.claims.items() for _ in range(count)])
        yield f"    {counts}"


def parts_and_looks(manifest: Manifest) -> tuple[list[int] | None, list[int] | None]:
    """Return the number of seeds of each part of a run, and the looks that are planned; None for what it does not have."""
    parts = [len(seed_list(part)) for part in manifest.parts] or None
    study = load(manifest.study) if manifest.study in NAMES else None
    if study is None or not study.appends or not manifest.settings.get("until"):
        return parts, None
    return parts, looks_up_to(study.settings.LOOKS, len(seed_list(manifest.settings["seeds"])))


def changed_settings(manifest: Manifest) -> dict[str, Any]:
    """Return the settings of a run that differ from the defaults of its study; of a comparison also those of its script."""
    default: Any = ComparisonSettings(seeds=ComparisonSettings.SEEDS)
    free: Sequence[str] = ()
    if SCRIPT not in manifest.files:
        if manifest.study not in NAMES:
            return {}
        study = load(manifest.study)
        default, free = study.settings(), study.may_change
    with contextlib.suppress(BadInput):  # some settings have no default
        default = default.resolved()
    found = differing([manifest.settings, settings_of(default, free)])
    return {name: value for name, (value, _) in found.items() if name in manifest.settings}
