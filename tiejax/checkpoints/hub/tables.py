"""Embedding tables of a checkpoint, read from the file by rows; they may be larger than the machine's memory."""

import difflib
from collections.abc import Iterator

import ml_dtypes  # registers bfloat16 in numpy, which safetensors needs
import numpy as np
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor, one_line
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.reading import SHARE, check_memory

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
FLOATS = ", ".join(DTYPES.values())
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BLOCK_BYTES = 64 * 2**20  # read at a time from a transposed table, whose rows are spread over the whole file

Rows = slice | Int[np.ndarray, "rows"]


class HubTable:
    """A table of a checkpoint, [rows, width], whose rows are read from the file on access.

    Nothing stays in memory or mapped, so that a table may be larger than memory. transposed: the file stores [width, rows].
    """

    def __init__(self, tensor: Tensor, transposed: bool = False) -> None:
        self.tensor, self.transposed = tensor, transposed
        self.name, self.file, self.dtype = tensor.name, tensor.file, DTYPES[tensor.dtype]
        rows, width = tensor.shape[::-1] if transposed else tensor.shape
        self.shape = (rows, width)
        self.nbytes = tensor.number * BYTES[tensor.dtype]
        self.given = np.dtype(np.float32)

    def cut(self, rows: int) -> "HubTable":
        """Return this table without the rows after the first `rows`."""
        table = HubTable(self.tensor, self.transposed)
        table.shape, table.given = (rows, self.shape[1]), self.given
        return table

    def as_stored(self) -> "HubTable":
        """Return this table with rows in bfloat16 (not checked to be finite) if stored in bfloat16, in float32 otherwise."""
        table = self.cut(self.shape[0])
        table.given = BFLOAT16 if self.tensor.dtype == "BF16" else np.dtype(np.float32)
        return table

    def __getitem__(self, rows: Rows) -> Float[np.ndarray, "rows width"]:
        """Return the rows of a slice or an ascending integer array, in the dtype `given`.

        Raises CheckpointError if they cannot be read, or are not finite in float32.
        """
        # No array of all row numbers, of which a file may claim any number.
        chosen = np.arange(*rows.indices(self.shape[0])) if isinstance(rows, slice) else np.asarray(rows)
        needed = len(chosen) * self.shape[1] * np.dtype(np.float32).itemsize
        check_memory(f"{self.file}: {len(chosen):,} rows of {self.name} {list(self.shape)}", needed, SHARE)
        try:
            # Opened for each read, since the pages of a mapped file count as this process's memory.
            with safe_open(self.file, framework="np") as file, np.errstate(over="ignore"):
                stored = file.get_slice(self.tensor.key)
                parts = []
                for first, last, start, stop in self._runs(chosen):
                    part = stored[:, start:stop].T if self.transposed else stored[start:stop]
                    part = part if len(part) == last - first else part[chosen[first:last] - start]
                    parts.append(np.ascontiguousarray(part, self.given))
                none = np.empty((0, self.shape[1]), self.given)
                values = parts[0] if len(parts) == 1 else np.concatenate([none, *parts])
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.file}: can no longer be read: {one_line(error)}") from None
        finite = self.given == BFLOAT16 or np.isfinite(values).all(axis=1)
        if not np.all(finite):
            row = chosen[np.argmin(finite)]
            raise CheckpointError(f"{self.file}: row {row} of {self.name} has a value that is not finite in float32")
        return values

    def _runs(self, rows: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """Yield ranges [first, last) of indices into `rows` read together, and the rows [start, stop) read for them."""
        if not self.transposed:
            ends = np.flatnonzero(np.diff(rows) != 1) + 1
            for first, last in zip([0, *ends], [*ends, len(rows)], strict=True):
                if first < last:
                    yield first, last, int(rows[first]), int(rows[last - 1]) + 1
            return
        step = max(BLOCK_BYTES // (4 * self.shape[1]), 1)
        for start in range(0, self.shape[0], step):
            first, last = np.searchsorted(rows, [start, start + step])
            if first < last:
                yield int(first), int(last), int(rows[first]), int(rows[last - 1]) + 1


def check_row(table: HubTable) -> None:
    """Raise CheckpointError if a single row of a table does not fit into memory, since tables are read by rows."""
    check_memory(f"{table.file}: a row of {table.name} {list(table.shape)}", 4 * table.shape[1], SHARE)


def table(checkpoint: Checkpoint, name: str, field: Field, rows: int | None = None) -> HubTable:
    """Return a tensor as a table with one row per token; raises CheckpointError, starting with the setting that named it.

    rows: the number of tokens, if known; a tensor [width, rows] is then read transposed.
    """
    if name not in checkpoint.tensors:
        near = difflib.get_close_matches(name, checkpoint.tensors, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise CheckpointError(field, f" {name}: {checkpoint.folder} has no such tensor{hint}")
    tensor = checkpoint.tensors[name]
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise CheckpointError(field, f" {name}: expected a table [tokens, width], got the shape {list(tensor.shape)}")
    if tensor.dtype not in DTYPES:
        raise CheckpointError(field, f" {name}: is stored as {tensor.dtype}; a table must be one of {FLOATS}, not quantised")
    return HubTable(tensor, transposed=rows is not None and tensor.shape[0] != rows and tensor.shape[1] == rows)
