"""Tables of embeddings that need not fit in memory: their rows are read block by block and computed with in float32."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

import ml_dtypes
import numpy as np
from jaxtyping import Float, Int

# A block of a table, as float32. Arrays above 32 MiB are given back to the system each time, and half the time of reading
# would go to new pages.
BLOCK_BYTES = 16 * 2**20

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EXPONENT = 0x7F80  # all bits of it are set in a bfloat16 that is not finite

T = TypeVar("T")
B = TypeVar("B")


@runtime_checkable
class Table(Protocol):
    """One embedding per row: a numpy array, or a reader of a file.

    shape: (rows, width). `table[rows]`, for a slice or an ascending integer array, gives these rows as a numpy array of any
    real dtype, bfloat16 included. No more than four blocks of rows are asked for at a time, not always from the main thread.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and width."""
        ...

    def __getitem__(self, rows: Any, /) -> Any:
        """Return some rows."""
        ...


Rows = slice | Int[np.ndarray, "rows"]


def check_tables(first: Table, second: Table) -> int:
    """Return the number of rows of two tables of the same tokens. ValueError where the shapes do not allow that."""
    for table in (first, second):
        if len(table.shape) != 2 or 0 in table.shape:
            raise ValueError(
                f"a table of shape {tuple(table.shape)}: a table has one row per token, [rows, width], none of them 0"
            )
    if first.shape[0] != second.shape[0]:
        raise ValueError(
            f"tables of {first.shape[0]} and {second.shape[0]} rows: compared token by token, both need one row per token"
        )
    return int(first.shape[0])


def check_rows(chosen: Int[np.ndarray, "rows"], number: int) -> None:
    """Raise a ValueError unless the chosen rows are ascending and within a table of so many rows."""
    if len(chosen) == 0 or chosen[0] < 0 or chosen[-1] >= number or (np.diff(chosen) <= 0).any():
        raise ValueError(f"rows must be ascending, without repeats, and within 0 to {number - 1}; at least one")


def chosen_rows(first: Table, second: Table, rows: Int[np.ndarray, "tokens"] | None) -> int | Int[np.ndarray, "tokens"]:
    """Return the rows of two tables that are meant, or how many there are if all are. ValueError where they do not fit."""
    number = check_tables(first, second)
    if rows is None:
        return number
    check_rows(rows, number)
    return rows


def row_blocks(number: int, bytes_per_row: int) -> Iterator[slice]:
    """Cut so many rows into blocks of at most `BLOCK_BYTES`, and of one row at least."""
    step = max(BLOCK_BYTES // bytes_per_row, 1)
    for start in range(0, number, step):
        yield slice(start, min(start + step, number))


def chosen_blocks(chosen: int | Int[np.ndarray, "tokens"], bytes_per_row: int) -> Iterator[Rows]:
    """Cut what `chosen_rows` gives into blocks, as `row_blocks` does."""
    if isinstance(chosen, int):
        return row_blocks(chosen, bytes_per_row)
    return (chosen[block] for block in row_blocks(len(chosen), bytes_per_row))


def read_ahead(read: Callable[[B], T], blocks: Iterable[B]) -> Iterator[tuple[B, T]]:
    """Yield every block and what is read of it; the next is read in a thread while the caller computes with this one."""
    with ThreadPoolExecutor(1) as reader:
        waiting = None
        for block in blocks:
            coming = block, reader.submit(read, block)
            if waiting:
                yield waiting[0], waiting[1].result()
            waiting = coming
        if waiting:
            yield waiting[0], waiting[1].result()


def read_rows(table: Table, rows: Rows) -> Float[np.ndarray, "rows width"]:
    """Return some rows as float32, not to be written to: they may be the table's own. ValueError: one is not finite."""
    return held_rows(table, rows).astype(np.float32, copy=False)


def held_rows(table: Table, rows: Rows) -> Float[np.ndarray, "rows width"]:
    """Return some rows as `read_rows` does, but in bfloat16 where the table gives them so."""
    block = np.asarray(table[rows])
    if block.dtype == BFLOAT16:
        finite = (block.view(np.uint16) & EXPONENT != EXPONENT).all(axis=1)
    else:
        block = block.astype(np.float32, copy=False)
        finite = np.isfinite(block).all(axis=1)
    if not finite.all():
        place = int(np.argmin(finite))
        row = (rows.start or 0) + place if isinstance(rows, slice) else int(rows[place])
        raise ValueError(f"row {row} of a table of shape {tuple(table.shape)} holds a value that is not finite")
    return block
