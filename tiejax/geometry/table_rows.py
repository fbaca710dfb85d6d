"""Embedding tables that need not fit in memory: rows are read in blocks and converted to float32."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

import ml_dtypes
import numpy as np
from jaxtyping import Float, Int

# Size of a block in float32. The allocator returns arrays above 32 MiB to the system, and reading would then spend half its
# time on new pages.
BLOCK_BYTES = 16 * 2**20

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EXPONENT = 0x7F80  # these bits are all set in a bfloat16 that is not finite
MAGNITUDE = 0x7FFF  # all bits of a bfloat16 but its sign

# Sums of products of numbers up to LARGE do not overflow float32. If the largest number is at least SMALL, products that
# underflow are negligible.
SMALL, LARGE = 2.0**-40, 2.0**40

T = TypeVar("T")
B = TypeVar("B")


@runtime_checkable
class Table(Protocol):
    """A table with one embedding per row: a numpy array, or a reader of a file.

    `table[rows]`, for a slice or an ascending integer array, returns these rows as a numpy array of any real dtype, including
    bfloat16. A request is for at most four blocks of rows (`BLOCK_BYTES` each) and may come from any thread.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and width."""
        ...

    def __getitem__(self, rows: Any, /) -> Any:
        """Return the rows of a slice or of ascending row numbers."""
        ...


Rows = slice | Int[np.ndarray, "rows"]


def row_blocks(number: int, bytes_per_row: int) -> Iterator[slice]:
    """Yield slices that divide `number` rows into blocks of at most `BLOCK_BYTES`, with at least one row each."""
    step = max(BLOCK_BYTES // bytes_per_row, 1)
    for start in range(0, number, step):
        yield slice(start, min(start + step, number))


def read_ahead(read: Callable[[B], T], blocks: Iterable[B]) -> Iterator[tuple[B, T]]:
    """Yield each block with its data; a thread reads the next block while the caller computes with this one."""
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
    """Return rows as float32, perhaps a view of the table: do not modify them. Raises ValueError if a value is not finite."""
    return stored_rows(table, rows).astype(np.float32, copy=False)


def stored_rows(table: Table, rows: Rows) -> Float[np.ndarray, "rows width"]:
    """Return rows as `read_rows` does, but without converting bfloat16."""
    block = np.asarray(table[rows])
    if block.dtype == BFLOAT16:
        finite = (block.view(np.uint16) & EXPONENT != EXPONENT).all(axis=1)
    else:
        block = block.astype(np.float32, copy=False)
        finite = np.isfinite(block).all(axis=1)
    if not finite.all():
        place = int(np.argmin(finite))
        row = (rows.start or 0) + place if isinstance(rows, slice) else int(rows[place])
        raise ValueError(f"row {row} of a table of shape {tuple(table.shape)} has a value that is not finite")
    return block


def exponents(rows: Float[np.ndarray, "rows width"], axis: int | None = None) -> Int[np.ndarray, "..."]:
    """Return exponents k, one for each column (axis 0) or one for all, such that float32 can hold products of rows * 2^-k.

    k is 0 for numbers of ordinary size, whose products are then computed from the rows as they are.
    """
    if rows.dtype == BFLOAT16:
        largest = np.asarray((rows.view(np.uint16) & MAGNITUDE).max(axis=axis)).view(BFLOAT16).astype(np.float32)
    else:
        largest = np.maximum(rows.max(axis=axis), -rows.min(axis=axis))
    is_safe = (largest == 0) | ((largest >= SMALL) & (largest <= LARGE))
    return np.where(is_safe, 0, np.frexp(largest)[1])


def row_norms(rows: Float[np.ndarray, "rows width"]) -> Float[np.ndarray, " rows"]:
    """Return the Euclidean norm of each row in float32; in float64 if any is too small or too large for sums in float32."""
    values = rows.astype(np.float32, copy=False)
    with np.errstate(over="ignore", under="ignore"):
        norms = np.sqrt(np.vecdot(values, values))
    unsafe = ~((norms >= SMALL) & (norms <= LARGE))
    exact = values[unsafe].astype(np.float64)
    if exact.any():  # zero rows are exact in float32
        norms = norms.astype(np.float64)
        norms[unsafe] = np.sqrt(np.vecdot(exact, exact))
    return norms


def row_cosines(x: Float[np.ndarray, "rows width"], y: Float[np.ndarray, "rows width"]) -> Float[np.ndarray, " rows"]:
    """Return the cosine in float32 of each row of x with the same row of y; NaN where one of the two is zero."""
    x_norms, y_norms = row_norms(x), row_norms(y)
    with np.errstate(all="ignore"):
        cosines = np.vecdot(x, y) / x_norms / y_norms
        unsafe = ~((x_norms >= SMALL) & (x_norms <= LARGE) & (y_norms >= SMALL) & (y_norms <= LARGE))
        if unsafe.any():
            exact = np.vecdot(x[unsafe].astype(np.float64), y[unsafe].astype(np.float64))
            cosines[unsafe] = exact / x_norms[unsafe] / y_norms[unsafe]
    return np.clip(cosines, -1, 1).astype(np.float32, copy=False)
