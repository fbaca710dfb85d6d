"""`tiejax join`: runs of the same settings with different seeds become one run.

Seeds can so be trained on several machines or in several sittings. What is joined are the finished stages of the runs, each of
which belongs to a block of seeds; the report of all seeds is then written as that of a resumed run.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.commands.studies import NAMES, load
from tiejax.lab.runs import entry
from tiejax.lab.runs.arrays import arrays_of
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import Manifest, damaged, differing
from tiejax.lab.runs.run_directory import CONFIG, ENVIRONMENT, EVENTS, FIGURES, FINISHED, METRICS, REPORT, RESULTS, RunDirectory
from tiejax.lab.runs.text import DATA
from tiejax.lab.settings import command_line, yaml_text
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.system.visible import cut
from tiejax.text.stored import atomic_folder

# What decides numbers besides settings and text, in environment.json.
DECIDING = ("versions", "git_commit", "xla_flags", "devices")
# What is about all seeds of a run, and is written again; what a stage measures of the machine.
REWRITTEN, TIMES = (RESULTS, METRICS, REPORT, f"{FIGURES}/", f"{EVENTS}/"), ("seconds_per_step", "step/time")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The runs to join, and the run directory to write.

    Args:
        runs: run directories of finished runs with the same settings and different seeds, in the order of their seeds in the
            new run
        out: run directory to write, which must not exist
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    out: str | None = None


COMMAND = CommandLine(
    description="Join finished runs of the same settings with different seeds to one run, with claims tested on all seeds, as "
    "if one run had trained the seeds of each as a part. A run with seeds enough to decide a claim is a look at the claims, as "
    "if the seeds of the next runs, in the order given, had been appended to it. The runs may differ in nothing else that "
    "decides numbers: study, settings, text, versions, commit, kinds of devices. For studies that store finished stages "
    "(causal-untying, layer-tying, a Comparison of one's own model). The runs are not changed.",
    example="Example: PROGRAM runs/seeds_0_9 runs/seeds_10_19 --out runs/joined.",
    switches={},
    positional=("runs",),
)


class Run(NamedTuple):
    """A run that is joined."""

    path: Path
    manifest: Manifest
    environment: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def parts(self) -> list[list[int]]:
        """The seeds of each of its parts."""
        return [seed_list(part) for part in self.manifest.all_parts]

    @property
    def could_decide(self) -> bool:
        """Whether the run had seeds enough for a claim to be decided.

        The smallest p of n seeds is 2^-n, and twice that for a difference. Equivalence is tested in another family.
        """
        rows = [row for row in json.loads((self.path / RESULTS).read_bytes())["claims"] if row.get("adjusted_level")]
        equivalences = sum(row.get("equivalence") is not None for row in rows)

        def smallest(row: Mapping[str, Any]) -> float:
            sides = 2 if row["goal"] == "difference" else 1
            of_equivalence = (
                equivalences / len(rows) if row.get("equivalence") else sides
            )  # in units of the level of these rows
            return float(min(sides, of_equivalence) * 2.0 ** -row["n"])

        return any(smallest(row) <= 1 - row["adjusted_level"] for row in rows)


def main(argv: Sequence[str]) -> int:
    """Join runs; return the exit status. Raises BadInput."""
    settings, _ = command_line.parse(Settings, COMMAND, argv)
    if len(settings.runs) < 2 or not settings.out:
        raise BadInput("runs, --out: name at least two run directories, and with --out the one to write")
    runs, out = [opened(Path(path).expanduser()) for path in settings.runs], Path(settings.out).expanduser()
    check(runs)
    if out.exists():
        raise BadInput(f"--out {cut(out)}: exists already; name a new run directory")
    for run in runs:
        if out.resolve().is_relative_to(run.path.resolve()):
            raise BadInput(f"--out {cut(out)}: lies in {run.path}, which is joined; name a directory outside")
    with atomic_folder(out) as folder:
        write(runs, folder, out)
    seeds = sum(len(part) for run in runs for part in run.parts)
    Console().say(f"joined {len(runs)} runs with {seeds} seeds in {out}")
    study = runs[0].manifest.study
    if study in NAMES:
        return entry.main(load(study), ["--resume", "--out", str(out)])
    Console().result(f"to write the report: the script of the runs with --resume --out {out}")
    return 0


def opened(path: Path) -> Run:
    """Return the run in a directory; raises BadInput unless it has finished, is whole and stores its stages."""
    manifest = RunDirectory.opened(path)
    if RESULTS not in manifest.files:
        raise BadInput(f"{path}: the run has not finished; continue it with its command and --resume")
    if damage := damaged(path, manifest):
        raise BadInput(f"{path}: damaged or missing: {', '.join(damage)}; its command with --resume writes them again")
    if not any(name.startswith(f"{FINISHED}/") for name in manifest.files):
        raise BadInput(f"{path}: a run of {manifest.study} stores no finished stages of separate seeds, so it cannot be joined")
    if manifest.settings.get("until"):
        raise BadInput(f"{path}: the run chose its number of seeds with --until; join runs with given --seeds")
    try:
        environment = json.loads((path / ENVIRONMENT).read_bytes())
        config = yaml_text.load((path / CONFIG).read_text())
    except ValueError:
        environment = config = None
    if not isinstance(environment, dict):
        raise BadInput(f"{path}: {ENVIRONMENT} or {CONFIG} is damaged; restore it")
    return Run(path, manifest, environment, config)


def check(runs: Sequence[Run]) -> None:
    """Raise BadInput, naming what differs, unless the runs differ in their seeds only."""
    first = runs[0]
    for run in runs[1:]:
        for what in ("study", "text"):
            one, other = getattr(first.manifest, what), getattr(run.manifest, what)
            if one != other:
                raise BadInput(f"{run.path}: expected the {what} of {first.path}, {cut(one)}, got {cut(other)}")
    settings = differing([{**run.manifest.settings, "gate": run.config.get("gate"), "seeds": None} for run in runs])
    for name, values in settings.items():
        raise BadInput(f"--{name}: differs between the runs: {', '.join(map(cut, values))}")
    for name in DECIDING:
        found = {
            json.dumps(start.get(name)) for run in runs for start in (run.environment, *run.environment.get("resumed", ()))
        }
        if len(found) > 1:
            raise BadInput(f"{ENVIRONMENT}: {name} differs between the runs: {', '.join(map(cut, sorted(found)))}")
    if first.manifest.settings.get("explore"):
        raise BadInput("--explore: exploratory arms are trained for the first seeds of each run only; join runs without them")
    seeds = [seed for run in runs for part in run.parts for seed in part]
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise BadInput(f"--seeds: seed {twice[0]} is in several of the runs; join runs with different seeds")


def write(runs: Sequence[Run], folder: Path, out: Path) -> None:
    """Write the joined run, which then has everything but its results, into a new folder; raises BadInput."""
    first, parts = runs[0], [part for run in runs for part in run.parts]
    files: dict[str, str] = {}
    lengths: dict[str, int] = {}
    for run in runs:
        for name, digest in run.manifest.files.items():
            if name.startswith(REWRITTEN):
                continue
            if name in files:
                if name != DATA and files[name] != digest:  # facts about the text name its path
                    check_same(folder / name, run.path / name)
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run.path / name, folder / name)
            files[name], lengths[name] = digest, (folder / name).stat().st_size
    seeds = [seed for part in parts for seed in part]
    settings = first.manifest.settings | {"seeds": seeds}
    manifest = dataclasses.replace(
        first.manifest, settings=settings, files=files, lengths=lengths, parts=tuple(parts), tested=tested(runs)
    )
    manifest.write(folder)
    (folder / CONFIG).write_text(yaml_text.dump({**first.config, "seeds": seeds, "out": str(out)}))


def tested(runs: Sequence[Run]) -> tuple[int, ...]:
    """Return the numbers of seeds, counted through the runs, with which claims had been tested before the runs are joined."""
    found, seeds = [], 0
    for run in runs:
        found += [seeds + before for before in run.manifest.tested]
        seeds += sum(map(len, run.parts))
        found += [seeds] if run.could_decide else []
    return tuple(before for before in found if before < seeds)


def check_same(one: Path, other: Path) -> None:
    """Raise BadInput unless a stage that several runs share, such as the choice of a learning rate, has the same arrays."""
    if other.suffix != ".npz":
        raise BadInput(f"{other}: differs from that of the other runs; these runs cannot be joined")
    stored, found = arrays_of(one.read_bytes()), arrays_of(other.read_bytes())
    names = [name for name in {*stored, *found} if name not in TIMES]
    if any(
        name not in stored or name not in found or not np.array_equal(stored[name], found[name], equal_nan=True)
        for name in names
    ):
        raise BadInput(f"{other}: differs from the same stage of the other runs; these runs cannot be joined")
