"""`tiejax untie FOLDER OUT`: the output table of a tied checkpoint stored for itself, so that every loader finds two."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import FLAG, levels, predicts
from tiejax.checkpoints.rewrite.rewrite import Part, copy_of, rewrite
from tiejax.checkpoints.rewrite.stored import WORDS, Stored, stored_tables
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine

WRAPPED = "language_model."  # before the names of the text model in a model of text and images


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which checkpoint is untied, and where the new one goes.

    Args:
        folder: folder of a checkpoint in the hub's format, whose tables are tied
        out: a folder that is new
    """

    folder: str | None = None
    out: str | None = None


COMMAND = CommandLine(
    description="Write a tied checkpoint anew as an untied one: the output table stored for itself, equal to the input table, "
    "and the flag of the configuration turned. Logits are the same to the bit, nothing else in the checkpoint changes, and the "
    "old folder is not touched.",
    example="Example: PROGRAM checkpoints/some-model checkpoints/some-model-untied",
    switches={},
    positional={
        "folder": "folder of a checkpoint in the hub's format, whose tables are tied",
        "out": "where the untied one goes: a folder that is new",
    },
)


def main(argv: Sequence[str]) -> int:
    """Untie a checkpoint; return the exit status. Raises BadInput."""
    settings, _ = command_line.parse(Settings, COMMAND, argv)
    if not settings.folder or not settings.out:
        raise BadInput("folder, out: name the folder of a checkpoint, and a new one")
    try:
        name = untie(Path(settings.folder).expanduser(), Path(settings.out).expanduser())
    except CheckpointError as error:
        raise BadInput(str(error)) from None
    Console().result(f"untied: {settings.out}, with {name}")
    return 0


def untie(folder: Path, out: Path) -> str:
    """Write a tied checkpoint as an untied one; return the name of its output table.

    Raises CheckpointError where it is not tied, or where the library ties its family whatever the flag says; OSError where the
    new folder cannot be written.
    """
    checkpoint = open_checkpoint(folder)
    tables = stored_tables(checkpoint)
    _check(checkpoint, tables)
    assert tables.input is not None
    name = tables.output.name if tables.output else name_of_output(tables, tables.input)
    parts = [] if tables.output else [copy_of(tables.input, name)]
    parts += [*_biases(checkpoint, name), *_inner_tables(checkpoint, tables.input)]
    rewrite(checkpoint, out, with_flag(checkpoint.config, False), {tables.input.file: parts} if parts else {})
    return name


def _check(checkpoint: Checkpoint, tables: Stored) -> None:
    """Raise CheckpointError unless the checkpoint has one table for both roles, or two equal ones."""
    if tables.relation not in ("one", "equal"):
        raise CheckpointError(f"{checkpoint.folder}: is not tied: it has {WORDS[tables.relation]}")
    if not predicts(checkpoint.config):
        raise CheckpointError(f"{checkpoint.folder}: its architecture predicts no tokens, so that it has no output table")
    if tables.family is None:
        kind = checkpoint.config.get("model_type")
        raise CheckpointError(f"{checkpoint.folder}: what the output table of {kind!r} is called is not known")
    if tables.family.always:
        raise CheckpointError(
            f"{checkpoint.folder}: version 5 of the transformers library ties every T5, whatever its flag says"
        )


def name_of_output(tables: Stored, source: Tensor) -> str:
    """Return what the family calls its output table, in a model of text and images as in one of text."""
    assert tables.family is not None
    wrapped = source.name.startswith(f"{WRAPPED}model.")
    return (WRAPPED if wrapped else "") + tables.family.output[0]


def _biases(checkpoint: Checkpoint, output: str) -> list[Part]:
    """Return the bias of an untied decoder: BERT and its kin share it with one that stands a level higher, while tied."""
    if not output.endswith(".decoder.weight"):
        return []
    own, shared = output.removesuffix("weight") + "bias", output.removesuffix("decoder.weight") + "bias"
    if own in checkpoint.tensors or shared not in checkpoint.tensors:
        return []
    return [copy_of(checkpoint.tensors[shared], own)]


def _inner_tables(checkpoint: Checkpoint, source: Tensor) -> list[Part]:
    """Return the tables of encoder and decoder, which in BART and its kin are the shared one while the flag says tied."""
    if not source.name.endswith("shared.weight"):
        return []
    prefix = source.name.removesuffix("shared.weight")
    names = (f"{prefix}{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    return [copy_of(source, name) for name in names if name not in checkpoint.tensors]


def with_flag(config: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Return a configuration that says whether the tables are tied, at every level at which a loader may read it."""
    inner = {where.rstrip("."): {**part, FLAG: tied} for where, part in levels(config).items() if where}
    return {**config, **inner, FLAG: tied}
