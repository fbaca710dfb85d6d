"""Norms of the rows of a model's input and output tables, and whether the two tables are equal, in one pass over both."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.geometry.table_rows import Table, check_tables, read_rows, row_blocks


class Norms(NamedTuple):
    """Euclidean norms of the rows of two tables. differing: rows in which any value differs; largest: the largest |difference|.

    Of one table alone, second, differing and largest are None.
    """

    first: Float[np.ndarray, "rows"]
    second: Float[np.ndarray, "rows"] | None
    differing: int | None
    largest: float | None


def norms_and_equality(first: Table, second: Table | None = None) -> Norms:
    """Compare two tables value by value, and measure their rows, in one pass over blocks of rows.

    Tables of different widths differ in every row. ValueError: tables of different heights, or with values not finite.
    """
    rows = int(first.shape[0]) if second is None else check_tables(first, second)
    norms = np.empty(rows, np.float32), np.empty(rows, np.float32)
    differing, largest = 0, 0.0
    for block in row_blocks(rows, 4 * first.shape[1]):
        x = read_rows(first, block)
        norms[0][block] = np.sqrt(np.vecdot(x, x))
        if second is None:
            continue
        y = read_rows(second, block)
        norms[1][block] = np.sqrt(np.vecdot(y, y))
        if x.shape != y.shape:
            differing, largest = rows, math.nan
            continue
        x -= y
        apart = np.abs(x, out=x).max(axis=1)
        differing += int((apart > 0).sum())
        largest = max(largest, float(apart.max()))
    return Norms(norms[0], norms[1], differing, largest) if second is not None else Norms(norms[0], None, None, None)
