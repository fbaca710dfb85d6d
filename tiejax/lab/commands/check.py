"""`tiejax check FOLDER ...`: do checkpoints store what their configurations say?"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from tiejax.checkpoints.check import STATUS, Checked, check
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which checkpoints are looked at.

    Args:
        folders: folders of checkpoints in the hub's format (config.json and *.safetensors, also sharded)
    """

    folders: list[str] = dataclasses.field(default_factory=list)


COMMAND = CommandLine(
    description="Say of each checkpoint whether its input and output embedding tables are stored as its configuration says: "
    "tied or untied, in fact and by the flag; what follows for whoever loads it; and the edit that mends it. Headers are read, "
    "and bytes only where two tables are stored. Status: 0 all agree, 1 one disagrees, 2 of one it cannot be said.",
    example="Example: PROGRAM checkpoints/*",
    switches={"json": "print one JSON object with what is said of every checkpoint"},
    positional={"folders": "folders of checkpoints in the hub's format (config.json and *.safetensors, also sharded)"},
)


def main(argv: Sequence[str]) -> int:
    """Check checkpoints; return the exit status. Raises BadInput."""
    settings, switches = command_line.parse(Settings, COMMAND, argv)
    if not settings.folders:
        raise BadInput("folders: name at least one folder of a checkpoint")
    found = [checked(Path(folder).expanduser()) for folder in settings.folders]
    if switches["json"]:
        print(json.dumps({"checkpoints": [one._asdict() for one in found]}, indent=1))  # which escapes what is not seen
    else:
        console = Console()
        for line in report(found):
            console.say(line)
    # A checkpoint that disagrees is worse than one of which nothing can be said.
    answers = {one.answer for one in found}
    return STATUS["disagrees"] if "disagrees" in answers else max(STATUS[answer] for answer in answers)


def checked(folder: Path) -> Checked:
    """Return what is said of a folder, also where it cannot be read."""
    try:
        return check(open_checkpoint(folder))
    except CheckpointError as error:
        return Checked(str(folder), None, "cannot say", "", "", str(error))


def report(found: Sequence[Checked]) -> list[str]:
    """Write a line for each checkpoint; below, of those that disagree or of a single one, what follows and what mends it."""
    lines = []
    for one in found:
        if not one.stored:
            lines.append(one.reason)
            continue
        lines.append(f"{one.folder}: {one.answer}: {one.stored}; {one.says}; {one.reason}")
        if one.answer == "disagrees" or len(found) == 1:
            lines += [f"    {sentence}" for sentence in one.follows]
        if one.edit is not None:
            lines.append(f"    Mend it: {one.edit}.")
    if len(found) > 1:
        answers = [one.answer for one in found]
        lines.append(", ".join(f"{answers.count(answer)} {answer}" for answer in STATUS if answer in answers))
    return lines
