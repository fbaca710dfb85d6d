"""The embedding tables that a checkpoint stores, and the relation between the two."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import FAMILIES, Family, check_whole, family_of, has_quantised_head, named, only
from tiejax.checkpoints.hub.tables import DTYPES, HubTable

BLOCK_BYTES = 2**22
LENGTH_BYTES = 8  # at the start of a safetensors file, for the length of its header
MOST_HEADER_BYTES = 10**8
SAMPLED = 64  # number of rows on which a constant ratio of two tables is tested first
SCALE_TOLERANCE = 1e-3

# one: only the input table is stored. head: only the output table is. Two tables: bitwise equal (equal), equal up to a
# constant factor (scaled), of different widths (shapes), or other (differ). quantised: the head is stored in a quantised form.
Relation = Literal["one", "head", "equal", "scaled", "differ", "shapes", "quantised", "nothing"]

WORDS = {
    "one": "one table",
    "head": "the output table alone",
    "equal": "two equal tables",
    "scaled": "two tables, one a multiple of the other",
    "differ": "two different tables",
    "shapes": "two tables of different shapes",
    "quantised": "an input table and a quantised head",
    "nothing": "no table by a known name",
}


class Stored(NamedTuple):
    """The stored tables. scale: if the relation is scaled, output = scale * input. padding: extra rows of the output table."""

    family: Family | None
    input: Tensor | None
    output: Tensor | None
    relation: Relation
    scale: float | None
    padding: int


def stored_tables(checkpoint: Checkpoint) -> Stored:
    """Find the embedding tables of a checkpoint and compare them.

    Raises CheckpointError if several tensors match the names of a table, if a table is empty, or if the tables are factorised.
    """
    check_whole(checkpoint)
    family = family_of(checkpoint.config)
    families = [family] if family else list(FAMILIES)
    inputs, outputs = ([getattr(of, role) for of in families] for role in ("input", "output"))
    first = only(checkpoint, named(checkpoint, inputs), "input")
    second = only(checkpoint, [tensor for tensor in named(checkpoint, outputs) if tensor != first], "output")
    for tensor in (first, second):
        if tensor is not None and 0 in tensor.shape:
            shape = list(tensor.shape)
            raise CheckpointError(f"{checkpoint.folder}: {tensor.name} has the shape {shape}, which is empty")
    if first is None:
        return Stored(family, None, second, "nothing" if second is None else "head", None, 0)
    if second is None:
        relation: Relation = "quantised" if has_quantised_head(checkpoint, outputs) else "one"
        return Stored(family, first, None, relation, None, 0)
    relation, scale = compare(first, second)
    padding = second.shape[0] - first.shape[0] if relation != "shapes" else 0
    return Stored(family, first, second, relation, scale, padding)


def compare(first: Tensor, second: Tensor) -> tuple[Relation, float | None]:
    """Return the relation of two tables, and their constant ratio second / first if they are scaled.

    Bytes are read only up to the first difference. If the second table has more rows, for padding, only the common rows are
    compared. Raises CheckpointError if a file cannot be read.
    """
    if first.shape[1:] != second.shape[1:] or second.shape[0] < first.shape[0]:
        return "shapes", None
    if first.dtype == second.dtype and _equal_bytes(first, second):
        return "equal", None
    if not {first.dtype, second.dtype} <= set(DTYPES):
        return "differ", None
    scale = _scale(HubTable(first), HubTable(second))
    return ("differ", None) if scale is None else ("equal", None) if scale == 1 else ("scaled", scale)


def _equal_bytes(first: Tensor, second: Tensor) -> bool:
    (start, length), (other, _) = extent_of(first), extent_of(second)
    blocks = zip(blocks_of(first.file, start, length), blocks_of(second.file, other, length), strict=True)
    return all(one == other for one, other in blocks)


def blocks_of(file: Path, start: int, length: int) -> Iterator[bytes]:
    """Yield `length` bytes of a file from `start`, in blocks; raises CheckpointError if they cannot be read."""
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            while length > 0 and (block := opened.read(min(BLOCK_BYTES, length))):
                length -= len(block)
                yield block
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    if length > 0:
        raise CheckpointError(f"{file}: truncated; download it again")


def extent_of(tensor: Tensor) -> tuple[int, int]:
    """Return the offset of a tensor's bytes in its file, and their number. The header has been checked by safetensors."""
    header, begin = header_of(tensor.file)
    start, stop = header[tensor.name]["data_offsets"]
    return begin + start, stop - start


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the offset of the tensors' bytes."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            if length > MOST_HEADER_BYTES:  # safetensors refuses a longer header, but accepted this file before
                raise CheckpointError(f"{file}: was changed while it was read; start again")
            return json.loads(opened.read(length)), LENGTH_BYTES + length
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None


def _scale(first: HubTable, second: HubTable) -> float | None:
    """Return c such that second = c * first in all common rows, None if there is no such number.

    A sample of rows is tested first, and all rows only if the sample fits.
    """
    rows = first.shape[0]
    sample = np.unique(np.linspace(0, rows - 1, SAMPLED).astype(int))
    try:
        x, y = first[sample], second[sample]
        square = float(np.vdot(x, x))
        scale = float(np.vdot(x, y)) / square if square > 0 else 0.0
        if scale == 0 or not _fits(x, y, scale):
            return None
        step = max(1, BLOCK_BYTES // (4 * first.shape[1]))
        blocks = (slice(start, min(start + step, rows)) for start in range(0, rows, step))
        if not all(_fits(first[block], second[block], scale) for block in blocks):
            return None
    except CheckpointError:  # a table with values that are not finite has no scale
        return None
    if abs(scale - 1) < SCALE_TOLERANCE:  # with one dtype, the tables are similar; with two dtypes, one is the other rounded
        return None if first.dtype == second.dtype else 1.0
    return scale


def _fits(x: np.ndarray, y: np.ndarray, scale: float) -> bool:
    return bool(np.abs(y - scale * x).max(initial=0) <= SCALE_TOLERANCE * max(float(np.abs(y).max(initial=0)), 1e-30))
