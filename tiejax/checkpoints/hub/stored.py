"""The embedding tables that a checkpoint stores, the relation between the two, and further tensors that a tie makes one.

Further tensors are, for example, the tables of an encoder and a decoder.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tiejax.checkpoints.hub.architectures import Architecture, architecture_of
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.locate import called, check_whole, form_of_tables, locate, spelled_so, stored_under
from tiejax.checkpoints.hub.reading import steps
from tiejax.checkpoints.hub.tables import DTYPES, HubTable, check_row

BLOCK_BYTES = 2**22
LENGTH_BYTES = 8  # at the start of a safetensors file, for the length of its header
MOST_HEADER_BYTES = 10**8
PRECISIONS = ("BF16", "F16", "F32", "F64")  # dtypes, the one with the fewest bits of a fraction first
SAMPLED = 64  # number of rows on which a constant ratio of two tables is tested first
SCALE_TOLERANCE = 1e-3

# one: only the input table is stored. head: only the output table is. Two tables: bitwise equal (equal), equal if the values of
# the more precise one are rounded to the dtype of the other (rounded), equal up to a constant factor (scaled), of different
# widths (shapes), or other (differ). encoded: a table is quantised or has an adapter. headless: the architecture predicts no
# tokens. nothing: no tensor has the name of a table. unknown: the architecture is unknown.
Relation = Literal["one", "head", "equal", "rounded", "scaled", "differ", "shapes", "encoded", "headless", "nothing", "unknown"]

WORDS: Mapping[Relation, str] = {
    "one": "one table",
    "head": "the output table alone",
    "equal": "two equal tables",
    "rounded": "two tables, equal after rounding",
    "scaled": "two tables, one a multiple of the other",
    "differ": "two different tables",
    "shapes": "two tables of different shapes",
    "encoded": "a table in another form",
    "headless": "a model that predicts no tokens",
    "nothing": "no table by a known name",
    "unknown": "tables of an unknown architecture",
}


class Stored(NamedTuple):
    """The stored tables: the input and the output table, None if not stored, and their relation.

    architecture: None if it is unknown; the tables are not located then. scale: if the relation is scaled, output = scale *
    input. padding: number of rows of the output table after those of the input table. form: if the relation is encoded, how a
    table is stored, in words.
    """

    architecture: Architecture | None
    input: Tensor | None
    output: Tensor | None
    relation: Relation
    scale: float | None = None
    padding: int = 0
    form: str | None = None

    @property
    def words(self) -> str:
        """The relation in words, with its details."""
        words = WORDS[self.relation]
        if self.relation == "rounded":
            assert self.input is not None
            assert self.output is not None
            words += f" to {DTYPES[min(self.input.dtype, self.output.dtype, key=PRECISIONS.index)]}"
        if self.scale is not None:
            words += f" ({self.scale:.4g} times the input)"
        if self.form is not None:
            words = f"a table stored {self.form}"
        return words + (f", the output {self.padding:,} rows longer" if self.padding else "")


def stored_tables(checkpoint: Checkpoint, equal: bool = False) -> Stored:
    """Find the embedding tables of a checkpoint and compare them, unless they are known to be `equal`.

    Raises CheckpointError if a table is empty, or if the tables are factorised (see `check_whole`).
    """
    check_whole(checkpoint)
    architecture = architecture_of(checkpoint.config)
    if architecture is None:
        return Stored(None, None, None, "unknown")
    first, second = (locate(checkpoint, architecture, role) for role in ("input", "output"))
    if not architecture.output:
        return Stored(architecture, first, None, "headless")
    if form := form_of_tables(checkpoint, architecture):
        return Stored(architecture, first, second, "encoded", form=form)
    if first is None and second is not None and any(called(second.name, name) for name in architecture.kept):
        return Stored(architecture, second, None, "one")
    if first is None or second is None:
        relation: Relation = "one" if first else "head" if second else "nothing"
        return Stored(architecture, first, second, relation)
    relation, scale = ("equal", None) if equal else compare(first, second)
    padding = second.shape[0] - first.shape[0] if relation != "shapes" else 0
    return Stored(architecture, first, second, relation, scale, padding)


def compare(first: Tensor, second: Tensor) -> tuple[Relation, float | None]:
    """Return the relation of two tables of floating point numbers, and their constant ratio second / first if they are scaled.

    Bytes are read only up to the first difference. If the second table has more rows, for padding, only the common rows are
    compared. Raises CheckpointError if a file cannot be read.
    """
    if first.shape[1:] != second.shape[1:] or second.shape[0] < first.shape[0]:
        return "shapes", None
    check_row(HubTable(first))
    if first.dtype == second.dtype:
        if _equal_bytes(first, second):
            return "equal", None
    elif (equal := _equal_values(first, second)) is not None:
        return equal, None
    scale = _scale(HubTable(first), HubTable(second))
    return ("differ", None) if scale is None else ("scaled", scale)


def equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have one shape and equal bytes, or equal values in two floating point dtypes.

    Bytes are read only up to the first difference. Raises CheckpointError if a file cannot be read.
    """
    if first.shape != second.shape:
        return False
    if first.dtype == second.dtype:
        return _equal_bytes(first, second)
    return {first.dtype, second.dtype} <= set(DTYPES) and _equal_values(first, second) == "equal"


def _equal_values(first: Tensor, second: Tensor) -> Relation | None:
    """Return whether tables of two dtypes are equal, or equal after one is rounded to the dtype of the other; None if not."""
    exact, down, up = True, True, True
    same = functools.partial(np.array_equal, equal_nan=True)  # as in a comparison of bytes
    step = steps(_comparing(first, second), HubTable(first).nbytes + HubTable(second).nbytes)
    for x, y in zip(_blocks_of_values(first, first.number), _blocks_of_values(second, first.number), strict=True):
        with np.errstate(over="ignore"):
            exact = exact and same(x.astype(np.float64), y.astype(np.float64))
            down, up = down and same(x.astype(y.dtype), y), up and same(x, y.astype(x.dtype))
        if not (exact or down or up):
            return None
        step(x.nbytes + y.nbytes)
    return "equal" if exact else "rounded"


def _blocks_of_values(tensor: Tensor, number: int) -> Iterator[np.ndarray]:
    """Yield the first `number` values of a tensor in blocks of equal lengths for all dtypes."""
    dtype = np.dtype(DTYPES[tensor.dtype])
    begin, step = extent_of(tensor)[0], BLOCK_BYTES // 8
    for start in range(0, number, step):
        length = min(step, number - start) * dtype.itemsize
        yield np.frombuffer(b"".join(blocks_of(tensor.file, begin + start * dtype.itemsize, length)), dtype)


def _equal_bytes(first: Tensor, second: Tensor) -> bool:
    (start, length), (other, _) = extent_of(first), extent_of(second)
    step = steps(_comparing(first, second), 2 * length)
    for x, y in zip(blocks_of(first.file, start, length), blocks_of(second.file, other, length), strict=True):
        if x != y:
            return False
        step(2 * len(x))
    return True


def _comparing(first: Tensor, second: Tensor) -> str:
    return f"comparing {first.name} and {second.name}"


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
    start, stop = header[tensor.key]["data_offsets"]
    return begin + start, stop - start


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, which is not to be changed, and the offset of the tensors' bytes."""
    try:
        found = file.stat()
        return _parsed(file, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None


@functools.lru_cache(maxsize=2)  # since the extent of each tensor of a file is looked up in its header
def _parsed(file: Path, _changed: int, _size: int) -> tuple[dict[str, Any], int]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        if length > MOST_HEADER_BYTES:  # safetensors refuses a longer header, but accepted this file before
            raise CheckpointError(f"{file}: was changed while it was read; start again")
        return json.loads(opened.read(length)), LENGTH_BYTES + length


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
    return None if abs(scale - 1) < SCALE_TOLERANCE else scale  # tables that are only similar differ


def _fits(x: np.ndarray, y: np.ndarray, scale: float) -> bool:
    return bool(np.abs(y - scale * x).max(initial=0) <= SCALE_TOLERANCE * max(float(np.abs(y).max(initial=0)), 1e-30))


def odd_one(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the first tensor that differs from the first of all, None if all are equal; raises CheckpointError."""
    return next((tensor for tensor in tensors[1:] if not equal(tensors[0], tensor)), None)


def further_groups(checkpoint: Checkpoint, architecture: Architecture, table: Tensor) -> list[list[Tensor]]:
    """Return the groups of tensors that are one in a tied model, of which a checkpoint stores two or more.

    The one that the library stores for a tied model comes first. table: the input table, the first of the group of its copies.
    """
    copies = [name for name in (*architecture.inner, *architecture.kept) if name not in architecture.output]
    further = [tensor for tensor in stored_of(checkpoint, architecture, table, copies) if tensor.name != table.name]
    others = [stored_of(checkpoint, architecture, table, names) for names in architecture.groups]
    return [tensors for tensors in ([table, *further], *others) if len(tensors) > 1]


def further_copies(checkpoint: Checkpoint, architecture: Architecture, table: Tensor, output: Tensor | None) -> tuple[str, ...]:
    """Return the names of further copies of one tensor, of which the library stores only the first if the tables are tied.

    table: the input table. output: the output table, whose bias is no such copy. Raises CheckpointError if tensors differ that
    the flag makes one.
    """
    bias = output.name.removesuffix("weight") + "bias" if output else None
    copies: list[str] = []
    for group in further_groups(checkpoint, architecture, table):
        names = [tensor.name for tensor in group]
        if bias in names:
            continue
        if odd := odd_one(group):
            raise CheckpointError(
                f"{checkpoint.folder}: cannot be tied: {odd.name} differs from {names[0]}, and a flag that says tied "
                "makes them one tensor"
            )
        copies += names[1:]
    return tuple(copies)


def output_name(checkpoint: Checkpoint, architecture: Architecture, table: Tensor) -> str:
    """Return the name of the output table, stored or not. table: the input table."""
    names = [stored_under(checkpoint, architecture, table, name) for name in architecture.output]
    return next((name for name in names if name in checkpoint.tensors), names[0])


def copies_of_untied(checkpoint: Checkpoint, architecture: Architecture, table: Tensor) -> dict[str, Tensor]:
    """Return the names of tensors that an untied model reads beside its two tables and the checkpoint lacks, with their values.

    These are tables of an encoder and a decoder, and others that the flag makes one, such as biases of BERT's decoder. table:
    the input table. Each name comes with the stored tensor that a tied model uses in its place.
    """
    shared = [name for name in architecture.kept if architecture.inner and name not in architecture.output]
    groups: list[tuple[tuple[str, ...], Tensor | None]] = [((*shared, *architecture.inner), table)]
    for group in architecture.groups:
        groups.append((group, next(iter(stored_of(checkpoint, architecture, table, group)), None)))
    copies: dict[str, Tensor] = {}
    for names, source in groups:
        lacking = [name for name in names if not any(spelled_so(checkpoint, [name], architecture.prefix))]
        spelled = (stored_under(checkpoint, architecture, table, name) for name in lacking)
        copies |= {name: source for name in spelled if source is not None and name not in checkpoint.tensors}
    return copies


def stored_of(checkpoint: Checkpoint, architecture: Architecture, table: Tensor, names: Sequence[str]) -> list[Tensor]:
    """Return the tensors with these names that a checkpoint stores, with the prefix of the given table."""
    spelled = dict.fromkeys(stored_under(checkpoint, architecture, table, name) for name in names)
    return [checkpoint.tensors[name] for name in spelled if name in checkpoint.tensors]
