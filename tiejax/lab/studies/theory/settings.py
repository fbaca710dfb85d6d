"""The settings of a theory check."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, Literal

from tiejax.lab.runs import manifest
from tiejax.lab.runs.resume import reopened
from tiejax.lab.settings import checks, command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.study import Study
from tiejax.lab.studies.exor import settings as exor
from tiejax.lab.studies.exor.contexts import count_contexts

CHECKED = {exor.STUDY.name: exor.STUDY}
MOST_CONTEXTS = 10_000  # all of them are evaluated at every iteration


@dataclasses.dataclass(frozen=True)
class Settings:
    """A theory check: does the loss without weight decay bring symbols of one meaning together?

    Args:
        run: directory of a finished EXor run of one task
        members: which members to continue from: those that solved the task (solved), or all
        most: largest number of members of each arm, in the order of their seeds
        iterations: largest number of iterations of L-BFGS
        apart: before the minimisation, move the input embeddings of each pair apart, along the line between them, to this
            relative distance (default: leave them as they are). In tied models the output embeddings move too
        out: directory of the check (default: runs/theory/NAME, where NAME is that of the run's folder)
    """

    run: str | None = None
    members: Literal["solved", "all"] = "solved"
    most: int = 16
    iterations: int = 3000
    apart: float | None = None
    out: str | None = None

    def resolved(self) -> "Settings":
        """Return the settings with all defaults filled in; raises BadInput for values that cannot be used."""
        if not self.run:
            raise BadInput(f"run: name the directory of an EXor run: {command_line.program()} RUN")
        checks.check_counts(self, ("most", "iterations"))
        if self.apart is not None and not (math.isfinite(self.apart) and self.apart > 0):
            raise BadInput(f"--apart: expected a finite number > 0, got {self.apart}")
        if self.out == "":
            raise BadInput("--out: expected the path of a directory, got ''")
        name = Path(os.path.realpath(self.folder)).name or "run"
        return dataclasses.replace(self, out=self.out or str(Path("runs", "theory", name)))

    @property
    def folder(self) -> Path:
        """The directory of the run."""
        return Path(self.run or "").expanduser()


def settings_of_run(folder: Path) -> tuple[manifest.Manifest, Any]:
    """Return the manifest and the settings of a run of one task with few enough contexts; raises BadInput."""
    listed, settings = reopened(folder, CHECKED, "checked")
    if settings.doses is not None:
        raise BadInput(f"{folder}: a run with several doses has several tasks; name a run with a single distribution")
    if (number := count_contexts(settings.tasks[0], settings.ordered)) > MOST_CONTEXTS:
        raise BadInput(f"{folder}: its task has {number:,} contexts, expected at most {MOST_CONTEXTS:,}")
    return listed, settings


STUDY = Study(
    "theory",
    Settings,
    CommandLine(
        description="Check a theorem on trained models of EXor: an optimal model has equal input embeddings for symbols of one "
        "meaning. Continues from the members of a finished run with L-BFGS in float64 on the exact training loss, without "
        "weight decay, and reports whether each pair comes together (the theorem) or stays apart (then weight decay had "
        "brought it together). Writes a report.",
        example="Example: PROGRAM runs/exor/main-transformer-small --most 8.",
        switches={
            "overwrite": "replace the existing check in the directory",
            "quiet": "print only warnings and the path of the report",
        },
        first=("members", "most", "iterations", "apart", "overwrite", "out"),
        positional=("run",),
    ),
    run="tiejax.lab.studies.theory.study:run",
    reserves_at_end=True,
    single_process=True,
    device_a_core=lambda settings: False,
    any_platform=lambda settings: False,  # the CPU
)
