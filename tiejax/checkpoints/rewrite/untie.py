"""Untying a checkpoint: a copy that stores the output table separately, so that every loader finds two tables."""

from pathlib import Path

from tiejax.checkpoints.hub.architectures import Architecture
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import flag_of, with_flag
from tiejax.checkpoints.hub.locate import stored_under, unknown
from tiejax.checkpoints.rewrite.rewrite import Part, copy_of, rewrite
from tiejax.checkpoints.rewrite.stored import Stored, stored_tables


def untie(folder: Path, out: Path) -> str:
    """Write an untied copy of a tied checkpoint.

    The output table is stored separately, equal to the input table, and the flag in config.json is set to false at every
    level. Logits stay bitwise equal, and every other tensor and file is copied.

    Args:
        folder: a checkpoint in the hub's format
        out: the folder to write, which must not exist

    Returns:
        The name of the output table.

    Raises:
        CheckpointError: if the checkpoint is not tied by its flag, or its architecture is unknown
        OSError: if `out` cannot be written
    """
    checkpoint = open_checkpoint(folder)
    tables = stored_tables(checkpoint)
    _check(checkpoint, tables)
    assert tables.input is not None
    architecture = tables.architecture
    assert architecture is not None
    under = stored_under(checkpoint, architecture, tables.input, architecture.output[0])
    name = tables.output.name if tables.output else under
    # The library stores the one table of a few architectures under the name of the output table.
    other = stored_under(checkpoint, architecture, tables.input, architecture.input[0]) if tables.input.name == under else under
    parts = [] if tables.output else [copy_of(tables.input, other)]
    parts += [*_biases(checkpoint, name), *_other_tables(checkpoint, architecture, tables.input)]
    rewrite(checkpoint, out, with_flag(checkpoint.config, False), {tables.input.file: parts} if parts else {})
    return name


def _check(checkpoint: Checkpoint, tables: Stored) -> None:
    """Raise CheckpointError unless one table serves both roles, by the flag, or there are two equal ones."""
    folder, relation, architecture = checkpoint.folder, tables.relation, tables.architecture
    if architecture is None:
        raise CheckpointError(f"{folder}: cannot be untied: {unknown(checkpoint)}")
    if relation == "headless":
        raise CheckpointError(f"{folder}: cannot be untied: its architecture predicts no tokens")
    if relation not in ("one", "equal"):
        raise CheckpointError(f"{folder}: is not tied: it has {tables.words}")
    if always := [version for version, ties in sorted(architecture.ties.items()) if ties == "always"]:
        raise CheckpointError(
            f"{folder}: cannot be untied: version {' and '.join(always)} of the transformers library ties "
            f"{architecture.name} whatever the flag says"
        )
    flag = flag_of(checkpoint.config)
    if relation == "one" and not (flag.tied and architecture.by_flag):
        raise CheckpointError(
            f"{folder}: cannot be untied: it stores one table, but nothing says that it is tied ({flag.where}); "
            "a head that is missing cannot be restored"
        )


def _biases(checkpoint: Checkpoint, output: str) -> list[Part]:
    """Return the bias that the untied decoder needs. Tied BERT-like models store it one level up."""
    if not output.endswith(".decoder.weight"):
        return []
    own, shared = output.removesuffix("weight") + "bias", output.removesuffix("decoder.weight") + "bias"
    if own in checkpoint.tensors or shared not in checkpoint.tensors:
        return []
    return [copy_of(checkpoint.tensors[shared], own)]


def _other_tables(checkpoint: Checkpoint, architecture: Architecture, source: Tensor) -> list[Part]:
    """Return copies of tables that the library does not store while they are tied, such as those of encoder and decoder."""

    def name_of(wanted: str) -> str:
        return stored_under(checkpoint, architecture, source, wanted)

    groups = [(source, [name_of(name) for name in architecture.inner])]
    for group in architecture.more:
        names = [name_of(name) for name in group]
        stored = [checkpoint.tensors[name] for name in names if name in checkpoint.tensors]
        groups += [(stored[0], names)] if stored else []
    return [copy_of(of, name) for of, names in groups for name in names if name not in checkpoint.tensors]
