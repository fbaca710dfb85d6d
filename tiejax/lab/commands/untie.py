"""The command `tiejax untie FOLDER OUT`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.hub.download import whole_folder
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite.untie import untie
from tiejax.lab.commands.check import warn_of_prefixes
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checkpoint to untie, and the folder to write.

    Args:
        folder: folder of a tied checkpoint in the Hugging Face format (config.json and *.safetensors, also sharded), or its id
            on the hub
        out: folder to write, which must not exist
    """

    folder: str | None = None
    out: str | None = None


COMMAND = CommandLine(
    description="Write an untied copy of a tied checkpoint: the output table is stored separately, equal to the input table, "
    "and the flag in config.json is set to false. Logits stay bitwise equal, everything else is copied, and the original "
    "folder is not changed.",
    example="Example: PROGRAM checkpoints/some-model checkpoints/some-model-untied.",
    switches={},
    positional=("folder", "out"),
)


def main(argv: Sequence[str]) -> int:
    """Untie a checkpoint; return the exit status. Raises BadInput."""
    settings, _ = command_line.parse(Settings, COMMAND, argv)
    if not settings.folder or not settings.out:
        raise BadInput("folder, out: name the folder of a checkpoint and a new folder")
    console = Console()
    try:
        with console.preparing(announce=True, stderr=True) as progress, reading.shown(progress):
            name = untie(whole_folder(settings.folder), Path(settings.out))
    except CheckpointError as error:
        raise BadInput(str(error)) from None
    console.result(f"untied: {settings.out}, with {name}")
    warn_of_prefixes(Path(settings.out), console)
    return 0
