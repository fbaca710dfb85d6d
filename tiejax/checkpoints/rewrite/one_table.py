"""One table for both roles, computed from two: the input table, the output table, their mean, or an aligned table.

X is the input table and Y the output table, [tokens, width]; T replaces both. Tables are read by rows, and may be larger than
memory.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.arrays import rounded
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.reading import steps
from tiejax.checkpoints.hub.tables import HubTable

Keep = Literal["input", "output", "mean", "aligned"]

BLOCK_BYTES = 2**25
MOST_SCALE = 10.0  # limit of a column's scale between tables of equal norm; beyond it, one table is nearly zero in that column


class OneTable(NamedTuple):
    """The table T, computed by rows.

    scale: c, which multiplies the hidden states before the output table; None unless aligned. output_norm: |Y| / |X|, 1 unless
    aligned.
    """

    input: HubTable
    output: HubTable
    keep: Keep
    scale: Float[np.ndarray, " width"] | None
    output_norm: float

    def rows(self, block: slice) -> Float[np.ndarray, "rows width"]:
        """Return rows of T, rounded to the input table's dtype as when stored, in float32; raises CheckpointError."""
        if self.keep == "input":
            return self.input[block]
        rows = self.output[block].astype(np.float64)
        if self.keep != "output" and self.scale is None:
            rows = (self.input[block] + rows) / 2
        elif self.scale is not None:
            # The minimiser of |T - x|^2 + |(c T - y) / n|^2 for given c, column by column.
            weight = self.scale / self.output_norm**2
            rows = (self.input[block] + weight * rows) / (1 + self.scale * weight)
        return rounded(rows, self.input.tensor.dtype, self.input.name).astype(np.float32)


class Distances(NamedTuple):
    """Relative distances of the new table from both old ones: |T - X| / |X| and |T diag(c) - Y| / |Y|, in Frobenius norms."""

    input: float
    output: float


def one_table(first: HubTable, second: HubTable, keep: Keep) -> OneTable:
    """Return the table that replaces two tables of one shape.

    input: T = X. output: T = Y. mean: T = (X + Y) / 2. aligned: the T and c that minimise |T - X|^2 + |(T diag(c) - Y) / n|^2,
    with n = |Y| / |X|, so that both tables have equal weight; column by column, the first principal direction of (x, y / n).
    The absolute value of c / n is limited to 10. Raises CheckpointError if a file cannot be read.
    """
    if keep != "aligned":
        return OneTable(first, second, keep, None, 1.0)
    squares, other_squares, products = np.zeros((3, first.shape[1]))
    for block in blocks(first, "fitting one table to both"):
        x, y = first[block].astype(np.float64), second[block].astype(np.float64)
        squares += (x * x).sum(axis=0)
        other_squares += (y * y).sum(axis=0)
        products += (x * y).sum(axis=0)
    norm = float(np.sqrt(other_squares.sum() / squares.sum())) if squares.sum() > 0 else 1.0
    norm = norm or 1.0
    angle = np.arctan2(2 * products / norm, squares - other_squares / norm**2) / 2
    slope = np.clip(np.sin(angle) / np.maximum(np.abs(np.cos(angle)), 1e-30), -MOST_SCALE, MOST_SCALE)
    return OneTable(first, second, keep, slope * norm, norm)


def distances(table: OneTable) -> Distances:
    """Return the relative distances of T from both tables; raises CheckpointError if they are not finite."""
    sums = np.zeros(4)
    for block in blocks(table.input, "differences of the tables"):
        x, y, t = (part.astype(np.float64) for part in (table.input[block], table.output[block], table.rows(block)))
        used = t if table.scale is None else t * table.scale
        with np.errstate(over="ignore"):
            sums += [np.vdot(t - x, t - x), np.vdot(x, x), np.vdot(used - y, used - y), np.vdot(y, y)]
    if not np.isfinite(sums).all():
        raise CheckpointError(
            f"{table.input.file}: the distance between {table.input.name} and {table.output.name} overflows float64"
        )
    relative = np.sqrt(sums[[0, 2]] / np.where(sums[[1, 3]] > 0, sums[[1, 3]], 1))
    return Distances(*relative.tolist())


def blocks(table: HubTable, phase: str, most: int | None = None) -> Iterator[slice]:
    """Yield slices that cover the rows of a table, small enough to hold several in memory, of `most` rows or fewer.

    phase: the purpose, for the progress of reading.
    """
    number = max(BLOCK_BYTES // (4 * table.shape[1]), 1)
    number = number if most is None else min(number, most)
    step = steps(phase, table.nbytes)
    for start in range(0, table.shape[0], number):
        block = slice(start, min(start + number, table.shape[0]))
        yield block
        step((block.stop - start) * table.nbytes // table.shape[0])
