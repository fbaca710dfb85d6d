"""Untying a checkpoint: a copy that stores the output table separately, so that every loader finds two tables."""

from pathlib import Path

from tiejax.checkpoints.hub.architectures import Architecture, unsafe
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import FLAG, flag_of, title_of, with_flag
from tiejax.checkpoints.hub.locate import lacks_prefix, of_head, unknown, wrapped
from tiejax.checkpoints.hub.stored import Stored, copies_of_untied, output_name, stored_tables
from tiejax.checkpoints.rewrite.rewrite import Part, copy_of, rewrite, section


def untie(folder: Path, out: Path) -> str:
    """Write an untied copy of a tied checkpoint.

    The output table is stored separately, equal to the input table, and the flag in config.json is set to false at every
    level. Logits stay bitwise equal, and every other tensor and file is copied. Tensors of the base model get its prefix if the
    file lacks it, as old ones do.

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
    assert tables.architecture is not None
    output = output_name(checkpoint, tables.architecture, tables.input)
    copies = copies_of_untied(checkpoint, tables.architecture, tables.input)
    if output not in checkpoint.tensors:
        copies = {output: tables.input} | copies
    parts = [copy_of(source, name) for name, source in copies.items()]
    copied = ", ".join(f"`{part.name}`" for part in parts) or "no tensor"
    renamed = _renamed(checkpoint, tables.architecture, tables.input)
    prefixed = f" The tensors of the base model got the prefix `{tables.architecture.prefix}.`." if renamed else ""
    changes = (
        f"`{FLAG}` is false, and copies were added of tensors that were one: {copied}.{prefixed} All values are unchanged."
    )
    card = section(folder, "untie", changes)
    added: dict[Path, list[Part]] = {tables.input.file: parts} if parts else {}
    for old, new in renamed.items():
        tensor = checkpoint.tensors[old]
        added.setdefault(tensor.file, []).append(copy_of(tensor, new))
    rewrite(checkpoint, out, with_flag(checkpoint.config, False), added, renamed, card)
    return output


def _renamed(checkpoint: Checkpoint, architecture: Architecture, table: Tensor) -> dict[str, str]:
    """Return new names of the base model's tensors if they lack its prefix: version 4 reads no head next to such names."""
    if not lacks_prefix(checkpoint, architecture, table) or wrapped(checkpoint):
        return {}
    return {name: f"{architecture.prefix}.{name}" for name in checkpoint.tensors if not of_head(architecture, name)}


def _check(checkpoint: Checkpoint, tables: Stored) -> None:
    """Raise CheckpointError unless one table serves both roles, by the flag, or there are two equal ones."""
    folder, relation, architecture = checkpoint.folder, tables.relation, tables.architecture
    if architecture is None:
        raise CheckpointError(f"{folder}: cannot be untied: {unknown(checkpoint)}")
    if relation == "headless":
        raise CheckpointError(f"{folder}: cannot be untied: its architecture predicts no tokens")
    if relation not in ("one", "equal"):
        set_false = relation in ("differ", "scaled", "shapes") and flag_of(checkpoint.config).tied
        fix = f"; set {FLAG} to false in config.json, as `tiejax check --fix` does" if set_false else ""
        raise CheckpointError(f"{folder}: is not tied: it has {tables.words}{fix}")
    if tables.padding and flag_of(checkpoint.config).tied:
        raise CheckpointError(f"{folder}: cannot be untied: it has {tables.words}, which a tied model does not have")
    if always := [version for version, ties in sorted(architecture.ties.items()) if ties == "always"]:
        raise CheckpointError(
            f"{folder}: cannot be untied: version {' and '.join(always)} of the transformers library ties "
            f"{title_of(checkpoint.config)} whatever the flag says"
        )
    if fault := unsafe(architecture, title_of(checkpoint.config)):
        raise CheckpointError(f"{folder}: cannot be untied: {fault}")
    flag = flag_of(checkpoint.config)
    if relation == "one" and not (flag.tied and architecture.by_flag):
        raise CheckpointError(
            f"{folder}: cannot be untied: it stores one table, but nothing says that it is tied ({flag.where}); "
            "a head that is missing cannot be restored"
        )
