"""One table for both roles, made of two: the input table, the output table, their mean, or what fits both up to a scale.

X is the input table, Y the output table, [tokens, width]; T is the table that takes the place of both. Read by rows, so that
tables may be larger than the memory.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.checkpoints.rewrite.vectors import rounded

Keep = Literal["input", "output", "mean", "aligned"]

BLOCK_BYTES = 2**25
MOST_SCALE = 10.0  # of a column, once both tables have one norm: beyond it, the column is one table's alone


class OneTable(NamedTuple):
    """T by its rows. scale: the numbers c by which the states that the output table reads are multiplied, where there are any.

    output_norm: that of Y relative to that of X, where tables are aligned.
    """

    input: HubTable
    output: HubTable
    keep: Keep
    scale: Float[np.ndarray, "width"] | None
    output_norm: float

    def rows(self, block: slice) -> Float[np.ndarray, "rows width"]:
        """Return rows of T as they are written, rounded to the input table's dtype, in float32; raises CheckpointError."""
        if self.keep == "input":
            return self.input[block]
        rows = self.output[block].astype(np.float64)
        if self.keep != "output" and self.scale is None:
            rows = (self.input[block] + rows) / 2
        elif self.scale is not None:
            # The minimum of |T - x|^2 + |(c T - y) / n|^2 for given c, column by column.
            weight = self.scale / self.output_norm**2
            rows = (self.input[block] + weight * rows) / (1 + self.scale * weight)
        return rounded(rows, self.input.tensor.dtype, self.input.name).astype(np.float32)


class Distances(NamedTuple):
    """How far both uses move: |T - X| / |X| and |T diag(c) - Y| / |Y|, in Frobenius norms."""

    input: float
    output: float


def one_table(first: HubTable, second: HubTable, keep: Keep) -> OneTable:
    """Return the table that takes the place of two of one shape.

    input: T = X. output: T = Y. mean: T = (X + Y) / 2. aligned: the T and c that minimise |T - X|^2 + |(T diag(c) - Y) / n|^2,
    with n = |Y| / |X|, so that both tables count the same: the first principal direction of (x, y / n) of each column. A
    column's c / n is at most 10. Raises CheckpointError where a file cannot be read.
    """
    if keep != "aligned":
        return OneTable(first, second, keep, None, 1.0)
    squares, other_squares, products = np.zeros((3, first.shape[1]))
    for block in blocks(first):
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
    """Return how far T is from both tables, each relative to its norm; raises CheckpointError where that is not finite."""
    sums = np.zeros(4)
    for block in blocks(table.input):
        x, y, t = (part.astype(np.float64) for part in (table.input[block], table.output[block], table.rows(block)))
        used = t if table.scale is None else t * table.scale
        with np.errstate(over="ignore"):
            sums += [np.vdot(t - x, t - x), np.vdot(x, x), np.vdot(used - y, used - y), np.vdot(y, y)]
    if not np.isfinite(sums).all():
        raise CheckpointError(
            f"{table.input.file}: {table.input.name} and {table.output.name} are too far apart to be measured"
        )
    of_input, of_output = np.sqrt(sums[[0, 2]] / np.where(sums[[1, 3]] > 0, sums[[1, 3]], 1))
    return Distances(float(of_input), float(of_output))


def blocks(table: HubTable, most: int | None = None) -> Iterator[slice]:
    """Yield all rows of a table, as many at a time as may be in memory several times, or `most` where that is less."""
    step = max(BLOCK_BYTES // (4 * table.shape[1]), 1)
    step = step if most is None else min(step, most)
    return (slice(start, min(start + step, table.shape[0])) for start in range(0, table.shape[0], step))
