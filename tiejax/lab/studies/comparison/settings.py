"""What may be asked of a comparison of runs."""

import collections
import dataclasses
from pathlib import Path
from typing import Any

from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.study import Study

MOST_RUNS = 12  # as many as one figure can tell apart


@dataclasses.dataclass(frozen=True)
class Settings:
    """Runs of one study beside each other.

    Args:
        runs: directories of finished runs, all of one study
        out: directory of the comparison (default: runs/compare/NAMES, by those of the runs)
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    out: str | None = None

    def resolved(self) -> "Settings":
        """Return the settings with every default written out; raises BadInput if they make no sense."""
        if not 2 <= len(self.runs) <= MOST_RUNS:
            raise BadInput(f"runs: name 2 to {MOST_RUNS} directories of finished runs, got {len(self.runs)}")
        places = collections.Counter(folder.resolve() for folder in self.folders)
        if repeated := [str(place) for place, number in places.items() if number > 1]:
            raise BadInput(f"runs: every run once, {repeated[0]} is repeated")
        if self.out == "":
            raise BadInput("--out: must name a directory, got nothing")
        names = "-".join(labels(self.folders)).replace("/", "_")
        return dataclasses.replace(self, out=self.out or str(Path("runs", "compare", names[:100])))

    @property
    def folders(self) -> list[Path]:
        """Where the runs are."""
        return [Path(run).expanduser() for run in self.runs]


def labels(folders: list[Path]) -> list[str]:
    """Return a name for each folder: the last parts of its path, as many as tell all of them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for number in range(1, max(map(len, parts)) + 1):
        names = ["/".join(of_folder[-number:]) for of_folder in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _run(launched: Any, console: Any) -> int:
    from tiejax.lab.studies.comparison.study import run

    return run(launched, console)


STUDY = Study(
    "comparison",
    Settings,
    CommandLine(
        description="Put finished runs of one study beside each other: the settings in which they differ, what each found on "
        "every claim, and one figure of the effects. Leaves a report.",
        example="Example: PROGRAM runs/exor/dh runs/exor/no-dh",
        switches={
            "overwrite": "remove the comparison that is in the directory and start anew",
            "quiet": "print nothing but warnings and the path of the report",
        },
        positional={"runs": "directories of finished runs, all of one study"},
    ),
    run=_run,
    claims_at_end=True,
    single_process=True,
    device_a_core=lambda settings: False,
)
