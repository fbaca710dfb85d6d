"""The command `tiejax check FOLDER ...`."""

import dataclasses
from collections.abc import Sequence

from tiejax.checkpoints.check import STATUS, Checked, check_folder
from tiejax.checkpoints.hub import reading
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checkpoints to check.

    Args:
        folders: folders of checkpoints in the Hugging Face format (config.json and *.safetensors, also sharded), or ids on the
            hub, ORGANISATION/NAME or ORGANISATION/NAME@REVISION
    """

    folders: list[str] = dataclasses.field(default_factory=list)


COMMAND = CommandLine(
    description="Check whether the configurations of checkpoints agree with the embedding tables they store, tied or untied. "
    "For a checkpoint that disagrees, print what loaders will do with it and the edit that fixes it. Reads only headers, "
    "and the values of tables where two are stored. Exit status: 0 if all agree, 1 if any disagrees, 2 if any "
    "cannot be judged.",
    example="Example: PROGRAM checkpoints/* --json.",
    switches={"json": "print the results as one JSON object"},
    positional={
        "folders": "folders of checkpoints in the Hugging Face format (config.json and *.safetensors, also sharded), or ids on "
        "the hub such as openai-community/gpt2, of which only the tables are downloaded"
    },
)


def main(argv: Sequence[str]) -> int:
    """Check checkpoints; return the exit status. Raises BadInput."""
    settings, switches = command_line.parse(Settings, COMMAND, argv)
    if not settings.folders:
        raise BadInput("folders: name the folder of at least one checkpoint")
    console = Console()
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
