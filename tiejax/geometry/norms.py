"""Norms, cosines and equality of the rows of an input and an output table, in one pass over both."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.geometry.table_rows import Rows, Table, read_ahead, read_rows, row_blocks, row_cosines, row_norms

LARGEST = np.finfo(np.float32).max  # of norms and differences, which may be larger only if entries are of this size


class Norms(NamedTuple):
    """Euclidean norms of the rows of two tables, and their differences.

    differing: number of rows in which any value differs. identical: whether all bits are equal; those of 0 and -0 differ.
    largest: the largest |difference|. cosine: the uncentred cosine of each row with the same row of the other table; NaN where
    one of the two is zero; None if the widths differ. The lowest cosines belong to the tokens whose input and output embeddings
    differ most. For a single table, all fields but `first` are None.
    """

    first: Float[np.ndarray, " rows"]
    second: Float[np.ndarray, " rows"] | None
    differing: int | None
    identical: bool | None
    largest: float | None
    cosine: Float[np.ndarray, " rows"] | None


def norms_and_equality(first: Table, second: Table | None = None) -> Norms:
    """Return the norms of the rows of one or two tables, and whether two tables are equal, in one pass over blocks of rows.

    Tables of different widths differ in every row. Raises ValueError if a value is not finite.
    """
    rows = int(first.shape[0])
    tables = [first] if second is None else [first, second]
    norms, cosine = np.empty((len(tables), rows), np.float32), np.empty(rows, np.float32)
    differing, identical, largest = 0, True, 0.0

    def read(block: Rows) -> list[np.ndarray]:
        return [read_rows(table, block) for table in tables]

    for block, parts in read_ahead(read, row_blocks(rows, 4 * max(table.shape[1] for table in tables))):
        norms[:, block] = [np.minimum(row_norms(part), LARGEST) for part in parts]
        if second is None or first.shape != second.shape:
            continue
        x, y = parts
        cosine[block] = row_cosines(x, y)
        identical = identical and np.array_equal(x.view(np.uint32), y.view(np.uint32))
        with np.errstate(over="ignore"):
            difference = x - y
        difference = np.minimum(np.abs(difference, out=difference).max(axis=1), LARGEST)
        differing += int((difference > 0).sum())
        largest = max(largest, float(difference.max()))
    if second is None:
        return Norms(norms[0], None, None, None, None, None)
    if first.shape != second.shape:
        return Norms(norms[0], norms[1], rows, False, math.nan, None)
    return Norms(norms[0], norms[1], differing, identical, largest, cosine)
