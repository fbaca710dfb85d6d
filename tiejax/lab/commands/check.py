"""The command `tiejax check FOLDER ...`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tiejax.checkpoints.check import STATUS, Checked, check_folder, unread_prefixes
from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.download import whole_folder
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite.fix import fix
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checkpoints to check.

    Args:
        folders: folders of checkpoints in the Hugging Face format (config.json and *.safetensors, also sharded), or ids on the
            hub, ORGANISATION/NAME or ORGANISATION/NAME@REVISION, of which only the tables are downloaded
        fix: folder in which to write a repaired copy of the only checkpoint, which must not exist
    """

    folders: list[str] = dataclasses.field(default_factory=list)
    fix: str | None = None


COMMAND = CommandLine(
    description="Check whether the configurations of checkpoints agree with the embedding tables they store, tied or untied. "
    "For a checkpoint that disagrees, print what loaders will do with it and the edit that fixes it. Reads only headers, "
    "and the values of tables where two are stored. With --fix, write a repaired copy of one checkpoint: the flag, a lone "
    "output table under its wrong name, copies of a shared table, prefixes of wrappers, the index.",
    example="Example: PROGRAM checkpoints/* --json; PROGRAM --fix repaired checkpoints/some-model.",
    switches={"json": "print the results as one JSON object"},
    positional=("folders",),
    status="Exit status: 0 all agree; 1 any disagrees; 2 any cannot be judged, or bad input. With --fix: 0 the copy was "
    "written, or nothing is to be repaired and none was; 2 a repair needs a decision, which is named. 4 a file could not be "
    "read or written; 130 interrupted.",
)


def main(argv: Sequence[str]) -> int:
    """Check checkpoints; return the exit status. Raises BadInput."""
    settings, switches = command_line.parse(Settings, COMMAND, argv)
    console = Console()
    if settings.fix is not None:
        return _fix(settings, console, switches["json"])
    if not settings.folders:
        raise BadInput("folders: name the folder of at least one checkpoint")
    with console.preparing(announce=True, stderr=True) as progress, reading.shown(progress):
        results = [check_folder(folder) for folder in settings.folders]
    if switches["json"]:
        console.json({"checkpoints": [result._asdict() for result in results]})
    else:
        for line in report(results):
            console.say(line)
    # A checkpoint that disagrees outweighs one that cannot be judged.
    answers = {result.answer for result in results}
    return STATUS["disagrees"] if "disagrees" in answers else max(STATUS[answer] for answer in answers)


def _fix(settings: Settings, console: Console, as_json: bool) -> int:
    """Write a repaired copy of a checkpoint; return the exit status. Raises BadInput."""
    if len(settings.folders) != 1 or not settings.fix:
        raise BadInput(f"--fix: expected a new folder and one checkpoint, got {len(settings.folders)}")
    folder, out = settings.folders[0], Path(settings.fix)
    try:
        with console.preparing(announce=True, stderr=True) as progress, reading.shown(progress):
            changes = fix(whole_folder(folder), out)
    except CheckpointError as error:
        raise BadInput(str(error)) from None
    if as_json:
        console.json({"folder": folder, "out": str(out) if changes else None, "changes": list(changes)})
    elif not changes:
        console.result(f"{folder}: nothing to repair; no copy was written")
    else:
        console.result(f"repaired: {out}")
        for change in changes:
            console.say(f"    {change}")
    return 0


def warn_of_prefixes(out: Path, console: Console) -> None:
    """Warn if loaders find no tensor of a copy under the prefix of all names."""
    for reason in unread_prefixes(open_checkpoint(out)):
        console.warn(f"{out}: {reason}; write a repaired copy with `tiejax check --fix`")


def report(results: Sequence[Checked]) -> list[str]:
    """Return one line per checkpoint, followed by consequences and the fix if it disagrees or is the only one."""
    lines = []
    for result in results:
        if not result.stored:
            lines.append(result.reason)
            continue
        lines.append(f"{result.folder}: {result.answer}: {result.stored}; {result.says}; {result.reason}")
        if result.answer == "disagrees" or len(results) == 1:
            lines += [f"    {sentence}" for sentence in result.follows]
        if result.edit is not None:
            lines.append(f"    Fix: {result.edit}.")
    if len(results) > 1:
        answers = [result.answer for result in results]
        lines.append(", ".join(f"{answers.count(answer)} {answer}" for answer in STATUS if answer in answers))
    return lines
