"""Untying a checkpoint: a copy that stores the output table separately, so that every loader finds two tables."""

from pathlib import Path

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import predicts, with_flag
from tiejax.checkpoints.rewrite.rewrite import Part, copy_of, rewrite
from tiejax.checkpoints.rewrite.stored import WORDS, Stored, stored_tables

WRAPPED = "language_model."  # prefix of the text model's tensors in a model of text and images


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
        CheckpointError: if the checkpoint is not tied, or the transformers library ties its family whatever the flag says
        OSError: if `out` cannot be written
    """
    checkpoint = open_checkpoint(folder)
    tables = stored_tables(checkpoint)
    _check(checkpoint, tables)
    assert tables.input is not None
    name = tables.output.name if tables.output else _output_name(tables, tables.input)
    parts = [] if tables.output else [copy_of(tables.input, name)]
    parts += [*_biases(checkpoint, name), *_inner_tables(checkpoint, tables.input)]
    rewrite(checkpoint, out, with_flag(checkpoint.config, False), {tables.input.file: parts} if parts else {})
    return name


def _check(checkpoint: Checkpoint, tables: Stored) -> None:
    """Raise CheckpointError unless the checkpoint has one table for both roles, or two equal ones."""
    if tables.relation not in ("one", "equal"):
        raise CheckpointError(f"{checkpoint.folder}: is not tied: it has {WORDS[tables.relation]}")
    if not predicts(checkpoint.config):
        raise CheckpointError(f"{checkpoint.folder}: cannot be untied: its architecture predicts no tokens")
    if tables.family is None:
        kind = checkpoint.config.get("model_type")
        raise CheckpointError(
            f"{checkpoint.folder}: cannot be untied: the name of the output table of {kind!r} models is unknown"
        )
    if tables.family.always:
        raise CheckpointError(
            f"{checkpoint.folder}: cannot be untied: from version 5 on, the transformers library ties every T5"
        )


def _output_name(tables: Stored, source: Tensor) -> str:
    """Return the family's name of the output table, with the prefix of a text model inside a model of text and images."""
    assert tables.family is not None
    wrapped = source.name.startswith(f"{WRAPPED}model.")
    return (WRAPPED if wrapped else "") + tables.family.output[0]


def _biases(checkpoint: Checkpoint, output: str) -> list[Part]:
    """Return the bias that the untied decoder needs. Tied BERT-like models store it one level up."""
    if not output.endswith(".decoder.weight"):
        return []
    own, shared = output.removesuffix("weight") + "bias", output.removesuffix("decoder.weight") + "bias"
    if own in checkpoint.tensors or shared not in checkpoint.tensors:
        return []
    return [copy_of(checkpoint.tensors[shared], own)]


def _inner_tables(checkpoint: Checkpoint, source: Tensor) -> list[Part]:
    """Return copies of the input table for encoder and decoder, which BART-like models do not store while they are tied."""
    if not source.name.endswith("shared.weight"):
        return []
    prefix = source.name.removesuffix("shared.weight")
    names = (f"{prefix}{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    return [copy_of(source, name) for name in names if name not in checkpoint.tensors]
