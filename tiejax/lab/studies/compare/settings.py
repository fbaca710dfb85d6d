"""Settings of the command that sets finished runs side by side."""

import collections
import dataclasses
import os
from pathlib import Path

from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.study import Study

MOST_RUNS = 12  # as many as one figure can tell apart
# Study -> function that returns claims about several of its runs: (settings, results) of each -> claims.
ACROSS = {"causal_untying": "tiejax.lab.studies.causal_untying.claims:claims_across"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The runs to compare.

    Args:
        runs: directories of finished runs of one study
        out: directory of the report (default: runs/compare/NAMES, from the names of the runs)
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    out: str | None = None

    def resolved(self) -> "Settings":
        """Return the settings with every default filled in; raises BadInput if they are invalid."""
        if not 2 <= len(self.runs) <= MOST_RUNS:
            raise BadInput(f"runs: expected 2 to {MOST_RUNS} directories of finished runs, got {len(self.runs)}")
        counts = collections.Counter(Path(os.path.realpath(folder)) for folder in self.folders)
        if repeated := [str(folder) for folder, count in counts.items() if count > 1]:
            raise BadInput(f"runs: expected every run once, but {repeated[0]} is repeated")
        if self.out == "":
            raise BadInput("--out: expected a directory, got ''")
        names = "-".join(labels(self.folders)).replace("/", "_")
        return dataclasses.replace(self, out=self.out or str(Path("runs", "compare", names[:100])))

    @property
    def folders(self) -> list[Path]:
        """The directories of the runs."""
        return [Path(run).expanduser() for run in self.runs]


def labels(folders: list[Path]) -> list[str]:
    """Return a name for each folder: the shortest ends of their paths, of equal length, that are all distinct."""
    parts = [folder.absolute().parts for folder in folders]
    for number in range(1, max(map(len, parts)) + 1):
        names = ["/".join(of_folder[-number:]) for of_folder in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


STUDY = Study(
    "compare",
    Settings,
    CommandLine(
        description="Compare finished runs of one study: the settings in which they differ, their results for every claim (a "
        "statement that the study tests), and a figure of the effect sizes. Writes a report.",
        example="Example: PROGRAM runs/exor/dh runs/exor/no-dh.",
        switches={
            "overwrite": "delete the report in the directory and write a new one",
            "quiet": "print only warnings and the path of the report",
            "json": "print one JSON object instead of lines of text: finding, runs, settings that differ, claims with the "
            "verdict of each run, path of the report",
        },
        positional=("runs",),
    ),
    run="tiejax.lab.studies.compare.study:run",
    reserves_at_end=True,
    single_process=True,
    device_a_core=lambda settings: False,
    any_platform=lambda settings: False,
)
