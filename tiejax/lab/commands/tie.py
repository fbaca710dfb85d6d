"""`tiejax tie FOLDER OUT`: two tables of a checkpoint become one, if that leaves its logits where they are."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.families import predicts
from tiejax.checkpoints.hub.tables import DTYPES, HubTable
from tiejax.checkpoints.rewrite.last_norm import last_norm
from tiejax.checkpoints.rewrite.one_table import Keep, OneTable, blocks, one_table
from tiejax.checkpoints.rewrite.rewrite import Part, check_new, copy_of, part_of, rewrite
from tiejax.checkpoints.rewrite.states import MOST_STATES
from tiejax.checkpoints.rewrite.stored import WORDS, Stored, compare, stored_tables
from tiejax.checkpoints.rewrite.tie_report import LEAST_TOP1, MOST_KL, Pair, measured
from tiejax.lab.commands.untie import with_flag
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import checks, command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.text.errors import CorpusError
from tiejax.text.sources import TFDS


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which checkpoint is tied, by which table, and on what its logits are compared.

    Args:
        folder: folder of a checkpoint in the hub's format, with two tables of one shape
        out: a folder that is new (default: nothing is written, and the report alone is printed)
        keep: which table stays: input, output, their mean, or aligned: what fits both best once each column of the output table
            may have a scale of its own, which goes into the layer normalisation before it
        text: a text file, a folder of them, or .gz, on which the model is run before and after; of BERT, ALBERT and GPT-2
        hidden: a .npy file of states [states, width], as the output table reads them (default: drawn at random)
        states: how many states are drawn, or places of the text predicted
        seed: of what is drawn
    """

    folder: str | None = None
    out: str | None = None
    keep: Keep = "input"
    text: str | None = None
    hidden: str | None = None
    states: int = 256
    seed: int = 0

    def check(self) -> None:
        """Raise BadInput, naming the option, if this makes no sense."""
        if not self.folder:
            raise BadInput("folder: name the folder of a checkpoint")
        for name, value in (("out", self.out), ("--text", self.text), ("--hidden", self.hidden)):
            if value == "":
                raise BadInput(f"{name}: must name a {'folder' if name == 'out' else 'file'}, got nothing")
        if self.text is not None and self.hidden is not None:
            raise BadInput("--hidden: states come from a file or from --text, not both")
        if self.text is not None and self.text.startswith(TFDS):
            raise BadInput(f"--text {self.text}: must be a text file or a folder of them")
        checks.check_counts(self, ("states",))
        checks.check_not_negative(self, ("seed",))
        if self.states > MOST_STATES:
            raise BadInput(f"--states: must be at most {MOST_STATES:,}, got {self.states:,}")


COMMAND = CommandLine(
    description="Write an untied checkpoint anew as a tied one, with one table for both roles and the flag of the "
    f"configuration turned, and say how far its logits move. Refused beyond {MOST_KL:g} nat, or below {LEAST_TOP1:g} of equal "
    "likeliest tokens, unless forced. The old folder is not touched. Without a second folder nothing is written.",
    example="Example: PROGRAM checkpoints/some-model checkpoints/some-model-tied --keep mean --text novel.txt",
    switches={
        "force": "write it however far logits move",
        "json": "print one JSON object instead of lines",
    },
    positional={
        "folder": "folder of a checkpoint in the hub's format, with two tables of one shape",
        "out": "where the tied one goes: a folder that is new (default: nothing is written)",
    },
    first=("keep", "text", "force"),
)


def main(argv: Sequence[str]) -> int:
    """Tie a checkpoint, or say what that would do; return the exit status. Raises BadInput."""
    settings, switches = command_line.parse(Settings, COMMAND, argv)
    settings.check()
    console = Console()
    try:
        pair = opened(Path(settings.folder or "").expanduser(), settings.keep)
        if settings.out is not None:
            check_new(pair.checkpoint, Path(settings.out).expanduser())
        table = one_table(HubTable(pair.input), HubTable(pair.output), settings.keep)
        if table.scale is not None and pair.norm is not None:
            table = table._replace(scale=pair.norm.storable(table.scale))
        report = measured(pair, table, settings.text, settings.hidden, settings.states, settings.seed)
        if switches["json"]:
            print(json.dumps(report.as_json(), indent=1, allow_nan=False))
        else:
            for line in report.lines():
                console.say(line)
        if settings.out is None:
            return 0
        if (obstacle := report.obstacle()) and not switches["force"]:
            raise BadInput(f"{settings.folder}: {obstacle}; --force writes it all the same")
        write(pair, table, Path(settings.out).expanduser())
    except (CheckpointError, CorpusError) as error:
        told = error.as_options() if isinstance(error, CheckpointError) else f"--text: {str(error).removeprefix('corpus ')}"
        raise BadInput(told) from None
    if not switches["json"]:
        console.result(f"tied: {settings.out}, by {pair.input.name}")
    return 0


def opened(folder: Path, keep: Keep) -> Pair:
    """Return a checkpoint that can be tied; raises CheckpointError for any other."""
    checkpoint = open_checkpoint(folder)
    stored = stored_tables(checkpoint)
    if stored.relation not in ("equal", "scaled", "differ"):
        raise CheckpointError(f"{folder}: cannot be tied: it has {WORDS[stored.relation]}, where two of one shape are needed")
    assert stored.input is not None
    assert stored.output is not None
    family, kind = stored.family, checkpoint.config.get("model_type")
    if family is None or family.never or family.always:
        raise CheckpointError(f"{folder}: cannot be tied: " + _family_fault(stored, kind))
    if not predicts(checkpoint.config):
        raise CheckpointError(f"{folder}: cannot be tied: its architecture predicts no tokens")
    if stored.padding:
        raise CheckpointError(
            f"{folder}: cannot be tied: its output table has {stored.padding:,} rows more than its input table"
        )
    for tensor in (stored.input, stored.output):
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{folder}: cannot be tied: {tensor.name} is stored as {tensor.dtype}")
    if keep in ("mean", "aligned") and "F64" in (stored.input.dtype, stored.output.dtype):
        raise CheckpointError(Field("keep"), f" {keep}: {folder} stores F64, which is read in float32; keep input or output")
    norm = last_norm(checkpoint, stored.input.shape[1])
    if keep == "aligned" and norm is None:
        raise CheckpointError(Field("keep"), f" aligned: {folder} has no layer normalisation known to stand before its head")
    return Pair(checkpoint, stored.relation, stored.input, stored.output, norm)


def _family_fault(stored: Stored, kind: object) -> str:
    if stored.family is None:
        return f"whether loaders of {kind!r} read the flag is not known"
    if stored.family.never:
        return f"the library ties no {stored.family.title}, whatever the flag says"
    return f"the library ties every {stored.family.title} of its own accord, and divides logits where the flag says tied"


def write(pair: Pair, table: OneTable, out: Path) -> None:
    """Write a checkpoint as a tied one, by this table; raises CheckpointError, or OSError where it cannot be written.

    Nothing else changes, but for the weights of the layer normalisation that takes up the scale of an aligned table.
    """
    parts = [] if table.keep == "input" else [_shared(pair, table)]
    if table.scale is not None and pair.norm is not None:
        parts += [
            part_of(tensor.name, tensor.dtype, values.reshape(tensor.shape)) for tensor, values in pair.norm.scaled(table.scale)
        ]
    biases, leave = _biases(pair)
    parts += biases
    added: dict[Path, list[Part]] = {}
    for part in parts:
        tensor = pair.checkpoint.tensors.get(part.name, pair.output)
        added.setdefault(tensor.file, []).append(part)
    left_out = [pair.output.name, *leave, *_inner_tables(pair)]
    rewrite(pair.checkpoint, out, with_flag(pair.checkpoint.config, True), added, left_out)


def _shared(pair: Pair, table: OneTable) -> Part:
    """Return the one table as a part, in the dtype of the input table."""
    tensor = pair.input
    if table.keep == "output" and pair.output.dtype == tensor.dtype:
        return copy_of(pair.output, tensor.name)
    dtype = np.dtype(DTYPES[tensor.dtype])
    nbytes = tensor.number * dtype.itemsize
    return Part(
        tensor.name,
        tensor.dtype,
        tensor.shape,
        nbytes,
        lambda: (table.rows(block).astype(dtype).tobytes() for block in blocks(table.input)),
    )


def _biases(pair: Pair) -> tuple[list[Part], list[str]]:
    """Return the bias of a tied decoder, and what is left out for it: BERT and its kin have it a level higher, once tied."""
    tensors, output = pair.checkpoint.tensors, pair.output.name
    own, shared = output.removesuffix("weight") + "bias", output.removesuffix("decoder.weight") + "bias"
    if not output.endswith(".decoder.weight") or own not in tensors or shared not in tensors:
        return [], []
    return [copy_of(tensors[own], shared)], [own]


def _inner_tables(pair: Pair) -> list[str]:
    """Return the tables of encoder and decoder that BART and its kin no longer store; raises CheckpointError if they differ."""
    if not pair.input.name.endswith("shared.weight"):
        return []
    prefix = pair.input.name.removesuffix("shared.weight")
    names = (f"{prefix}{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    inner = [name for name in names if name in pair.checkpoint.tensors]
    for name in inner:
        if compare(pair.input, pair.checkpoint.tensors[name])[0] != "equal":
            raise CheckpointError(f"{pair.checkpoint.folder}: cannot be tied: {name} differs from {pair.input.name}")
    return inner
