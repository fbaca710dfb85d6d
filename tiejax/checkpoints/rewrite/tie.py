"""Tying a checkpoint: a copy with one table for both roles, and a report of how much that changes the logits."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tiejax.checkpoints.hub.architectures import Architecture, unsafe
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.families import FLAG, title_of, with_flag
from tiejax.checkpoints.hub.locate import located, unknown
from tiejax.checkpoints.hub.stored import further_copies, stored_tables
from tiejax.checkpoints.hub.tables import DTYPES, HubTable
from tiejax.checkpoints.rewrite.one_table import Keep, OneTable, blocks, one_table
from tiejax.checkpoints.rewrite.rewrite import Part, check_new, copy_of, part_of, rewrite, section
from tiejax.checkpoints.rewrite.states import last_norm, other_reader
from tiejax.checkpoints.rewrite.tie_report import Pair, Report, measure


class Plan(NamedTuple):
    """A checkpoint to be tied, the table that both roles will share, and what that changes.

    copies: names of further copies of one tensor, which the tied checkpoint does not store.
    """

    pair: Pair
    table: OneTable
    report: Report
    copies: tuple[str, ...]


def tie(
    folder: Path,
    out: Path,
    keep: Keep = "input",
    text: str | None = None,
    hidden: str | None = None,
    states: int = 256,
    seed: int = 0,
    force: bool = False,
) -> Report:
    """Write a tied copy of an untied checkpoint, if that hardly changes its logits.

    Args:
        folder: a checkpoint in the hub's format, with two tables of one shape
        out: the folder to write, which must not exist
        keep: the table for both roles: "input", "output", their "mean", or "aligned" (see `one_table`)
        text: a text file, a folder of text files, or a .gz file, on which the model is run before and after
        hidden: a .npy file of hidden states [states, width], as the output table reads them; drawn at random by default
        states: number of states drawn, or of positions predicted in the text
        seed: random seed of the states, and of the masked positions in the text
        force: write the copy even if the report advises against it

    Returns:
        The report.

    Raises:
        CheckpointError: if the checkpoint cannot be tied, or the report advises against it (`Report.obstacle`) without `force`
        CorpusError: if the text cannot be read
        OSError: if `out` cannot be written
    """
    planned = plan(folder, out, keep, text, hidden, states, seed)
    write(planned, out, force)
    return planned.report


def plan(folder: Path, out: Path | None, keep: Keep, text: str | None, hidden: str | None, states: int, seed: int) -> Plan:
    """Measure what tying a checkpoint would change, and write nothing; arguments and errors as in `tie`.

    out: the folder to check for `write`; None skips the check.
    """
    pair = _open_pair(folder, keep)
    if out is not None:
        check_new(pair.checkpoint, out)
    copies = further_copies(pair.checkpoint, pair.architecture, pair.input, pair.output)
    table = one_table(HubTable(pair.input), HubTable(pair.output), keep)
    if table.scale is not None and pair.norm is not None:
        table = table._replace(scale=pair.norm.storable(table.scale))
    return Plan(pair, table, measure(pair, table, text, hidden, states, seed), copies)


def write(planned: Plan, out: Path, force: bool = False) -> None:
    """Write the tied checkpoint; raises CheckpointError if the report advises against it, unless forced, and OSError.

    The only tensors that change are the tables, the decoder's bias where a tied model stores it under another name, and, for
    an aligned table, the weights of the layer normalisation that takes up its scale.
    """
    pair, table = planned.pair, planned.table
    if not force and (obstacle := planned.report.obstacle()):
        raise CheckpointError(f"{pair.checkpoint.folder}: {obstacle}; use ", Field("force"), " to write it anyway")
    parts = [] if table.keep == "input" else [_shared_table(pair, table)]
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
    left_out = [pair.output.name, *leave, *planned.copies]
    changes = (
        f"`{FLAG}` is true, `{pair.input.name}` serves both roles, and these tensors are no longer stored: "
        f"{', '.join(f'`{name}`' for name in left_out)}.\n\n" + "\n".join(f"* {line}" for line in planned.report.lines())
    )
    card = section(pair.checkpoint.folder, f"tie --keep {table.keep}", changes)
    rewrite(pair.checkpoint, out, with_flag(pair.checkpoint.config, True), added, left_out, card)


def _open_pair(folder: Path, keep: Keep) -> Pair:
    """Return the two tables of a checkpoint that can be tied; raises CheckpointError for any other checkpoint."""
    checkpoint = open_checkpoint(folder)
    stored = stored_tables(checkpoint)
    if stored.architecture is None:
        raise CheckpointError(f"{folder}: cannot be tied: {unknown(checkpoint)}")
    if stored.relation == "headless":
        raise CheckpointError(f"{folder}: cannot be tied: its architecture predicts no tokens")
    if stored.relation not in ("equal", "rounded", "scaled", "differ"):
        raise CheckpointError(f"{folder}: cannot be tied: it has {stored.words}; tying needs two of one shape")
    assert stored.input is not None
    assert stored.output is not None
    if fault := _fault(stored.architecture, title_of(checkpoint.config)):
        raise CheckpointError(f"{folder}: cannot be tied: {fault}")
    if stored.architecture.type == "mobilebert" and stored.relation != "equal":
        raise CheckpointError(f"{folder}: cannot be tied: its logits read a second matrix; only equal tables can be tied")
    if stored.padding:
        raise CheckpointError(
            f"{folder}: cannot be tied: its output table has {stored.padding:,} more rows than its input table"
        )
    if keep in ("mean", "aligned") and "F64" in (stored.input.dtype, stored.output.dtype):
        raise CheckpointError(
            Field("keep"), f" {keep}: {folder} stores F64, but the {keep} table is computed in float32; keep input or output"
        )
    # The name under which the library stores the one table, of several with equal values (`_copies` compares them).
    kept = located(checkpoint, stored.architecture.kept, stored.architecture.prefix)
    shared = stored.input if kept is None or kept.name == stored.output.name else kept
    norm = last_norm(checkpoint, (shared.name, stored.output.name), shared.shape[1])
    if keep == "aligned" and norm is None:
        raise CheckpointError(Field("keep"), f" aligned: no layer normalisation is known to precede the head of {folder}")
    if keep == "aligned" and norm is not None and (other := other_reader(checkpoint, norm)) is not None:
        raise CheckpointError(
            Field("keep"), f" aligned: {other} of {folder} reads the layer normalisation that would change; keep another table"
        )
    return Pair(checkpoint, stored.architecture, stored.relation, shared, stored.output, norm)


def _fault(architecture: Architecture, title: str | None) -> str | None:
    """Return why loaders would not tie the tables by the flag, None if they do."""
    for version, ties in sorted(architecture.ties.items()):
        if ties != "by flag":
            return f"version {version} of the transformers library {ties} ties {title}, whatever the flag says"
    return unsafe(architecture, title)


def _shared_table(pair: Pair, table: OneTable) -> Part:
    """Return the shared table as a part, in the dtype of the input table."""
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
        lambda: (table.rows(block).astype(dtype).tobytes() for block in blocks(table.input, "the shared table")),
    )


def _biases(pair: Pair) -> tuple[list[Part], list[str]]:
    """Return the bias of a tied decoder, and the names it replaces. Tied BERT-like models store it one level up."""
    tensors, output = pair.checkpoint.tensors, pair.output.name
    own, shared = output.removesuffix("weight") + "bias", output.removesuffix("decoder.weight") + "bias"
    if not output.endswith(".decoder.weight") or own not in tensors or shared not in tensors:
        return [], []
    return [copy_of(tensors[own], shared)], [own]
