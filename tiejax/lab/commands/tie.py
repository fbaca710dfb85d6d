"""The command `tiejax tie FOLDER [OUT]`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.hub.download import whole_folder
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite import tie
from tiejax.checkpoints.rewrite.one_table import Keep
from tiejax.checkpoints.rewrite.states import MOST_STATES
from tiejax.checkpoints.rewrite.tie_report import LEAST_TOP1, MOST_KL
from tiejax.lab.commands.check import warn_of_prefixes
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import checks, command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.text.errors import CorpusError
from tiejax.text.sources import TFDS


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checkpoint to tie, the table to keep, and the states on which logits are compared.

    Args:
        folder: folder of a checkpoint in the Hugging Face format (config.json and *.safetensors, also sharded), with two tables
            of the same shape, or its id on the hub
        out: folder to write, which must not exist (default: only print the report)
        keep: the table for both uses: input, output, their mean, or aligned (the best fit to both tables if each column of the
            output table may have its own scale; the scale goes into the layer normalisation before the head)
        text: text on which the model is run before and after, for BERT, ALBERT and GPT-2: a text file, a folder of text files,
            or a .gz file
        hidden: a .npy file of hidden states [states, width] to which the output table is applied (default: random states)
        states: number of random states, or of positions predicted in the text
        seed: random seed of the states, and of the masked positions in the text
    """

    folder: str | None = None
    out: str | None = None
    keep: Keep = "input"
    text: str | None = None
    hidden: str | None = None
    states: int = 256
    seed: int = 0

    def check(self) -> None:
        """Raise BadInput, naming the flag, for a value that cannot be used."""
        if not self.folder:
            raise BadInput("folder: name the folder of a checkpoint")
        for name, value in (("out", self.out), ("--text", self.text), ("--hidden", self.hidden)):
            if value == "":
                raise BadInput(f"{name}: expected the path of a {'folder' if name == 'out' else 'file'}, got ''")
        if self.text is not None and self.hidden is not None:
            raise BadInput("--hidden: states come from this file or from --text, not from both; leave one out")
        if self.text is not None and self.text.startswith(TFDS):
            raise BadInput(f"--text {self.text}: expected a text file or a folder of text files")
        checks.check_counts(self, ("states",))
        checks.check_not_negative(self, ("seed",))
        if self.states > MOST_STATES:
            raise BadInput(f"--states: expected at most {MOST_STATES:,}, got {self.states:,}")


COMMAND = CommandLine(
    description="Write a tied copy of an untied checkpoint, with one table for both uses and the flag in config.json set to "
    f"true, and report how much its logits change. Refuses, without --force, if the mean KL divergence exceeds {MOST_KL:g} nat "
    f"or fewer than {LEAST_TOP1:.0%} of the top-1 predictions stay the same. The original folder is not "
    "changed. Without OUT, only the report is printed.",
    example="Example: PROGRAM checkpoints/some-model checkpoints/some-model-tied --keep mean --text novel.txt.",
    switches={
        "force": "write the copy even if the logits change too much",
        "json": "print the report as one JSON object",
    },
    positional=("folder", "out"),
    first=("keep", "text", "force"),
)


def main(argv: Sequence[str]) -> int:
    """Tie a checkpoint, or report what tying would change; return the exit status. Raises BadInput."""
    settings, switches = command_line.parse(Settings, COMMAND, argv)
    settings.check()
    if settings.text is not None:  # the model runs on the text
        environment.check()
    console = Console()
    out = None if settings.out is None else Path(settings.out)
    try:
        folder = whole_folder(settings.folder or "")
        with console.preparing(announce=True, stderr=True) as progress, reading.shown(progress):
            planned = tie.plan(folder, out, settings.keep, settings.text, settings.hidden, settings.states, settings.seed)
        if switches["json"]:
            console.json(planned.report.as_json())
        else:
            for line in planned.report.lines():
                console.say(line)
            if out is None and (obstacle := planned.report.obstacle()):
                console.say(f"a copy would need --force: {obstacle}")
        if out is None:
            return 0
        with console.preparing(announce=True, stderr=True) as progress, reading.shown(progress):
            tie.write(planned, out, switches["force"])
    except CheckpointError as error:
        raise BadInput(error.as_options()) from None
    except CorpusError as error:
        raise BadInput(f"--text: {str(error).removeprefix('corpus ')}") from None
    warn_of_prefixes(out, console)
    if not switches["json"]:
        console.result(f"tied: {settings.out}, by {planned.pair.input.name}")
    return 0
