"""Means and cross-products of two centred tables, in one pass over blocks of rows: all that maps between them are made from."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.geometry import table_rows
from tiejax.geometry.products import column_products, has_amx
from tiejax.geometry.table_rows import BFLOAT16, Table, chosen_blocks, chosen_rows, held_rows, read_ahead

# Products of rows as they are lose digits where columns are far from 0, by the square of mean over standard deviation, and
# sums in float32 by their length.
FAR = 1.0
MOST_ROWS = 1024  # of narrow tables; of wide ones as many as they are wide


class CrossProducts(NamedTuple):
    """Means, and products X^T X, Y^T Y and X^T Y, of two tables X, Y [rows, width] centred on their means; float64."""

    rows: int
    source_mean: Float[np.ndarray, "source"]
    target_mean: Float[np.ndarray, "target"]
    source_gram: Float[np.ndarray, "source source"]
    target_gram: Float[np.ndarray, "target target"]
    cross: Float[np.ndarray, "source target"]


def cross_products(source: Table, target: Table, rows: Int[np.ndarray, "tokens"] | None = None) -> CrossProducts:
    """Compute the cross-products of two tables centred on their means.

    X^T Y = sum_b X_b^T Y_b + sum_b n_b (m_b - m) (k_b - k)^T (Chan, Golub and LeVeque 1983), with X_b and Y_b the n_b rows of
    block b less their own means m_b and k_b, so that tables far from the origin lose no digits. Near the origin bfloat16 rows
    are multiplied as they stand, and n_b m_b k_b^T is taken off. Products within a block are float32, sums over blocks
    float64. rows: the ascending rows to use, all if None. ValueError: tables that do not fit.
    """
    chosen = chosen_rows(source, target, rows)
    widths = source.shape[1], target.shape[1]
    totals = [np.zeros((widths[i], widths[j])) for i, j in ((0, 0), (1, 1), (0, 1))]
    counts, stood, means = [], [], []
    near = True
    # Four times as many rows as elsewhere, since each block costs a pass over three matrices in float64; but not more than
    # sums in float32 can be of.
    blocks = chosen_blocks(chosen, max(*widths, table_rows.BLOCK_BYTES // max(*widths, MOST_ROWS)))
    for _, (x, y) in read_ahead(lambda block: (held_rows(source, block), held_rows(target, block)), blocks):
        means.append([part.mean(axis=0, dtype=np.float64) for part in (x, y)])
        products = _as_they_stand(x, y, *means[-1]) if near else None
        near = products is not None  # a far column is far in every block
        counts.append(len(x))
        stood.append(near)
        for total, part in zip(totals, products or _centred(x, y, *means[-1]), strict=True):
            total += part
    return _together(totals, np.array(counts), np.array(stood), [np.array(of_table) for of_table in zip(*means, strict=True)])


def _together(totals: list[np.ndarray], counts: np.ndarray, stood: np.ndarray, means: list[np.ndarray]) -> CrossProducts:
    """Return the products of all rows from the sums over blocks and the blocks' means; stood: those not centred."""
    of_all = [np.average(of_table, axis=0, weights=counts) for of_table in means]
    for total, (i, j) in zip(totals, ((0, 0), (1, 1), (0, 1)), strict=True):
        total += ((means[i] - of_all[i]) * counts[:, None]).T @ (means[j] - of_all[j])
        total -= (means[i] * (counts * stood)[:, None]).T @ means[j]
    return CrossProducts(int(counts.sum()), *of_all, *totals)


def _as_they_stand(x: np.ndarray, y: np.ndarray, x_mean: np.ndarray, y_mean: np.ndarray) -> list[np.ndarray] | None:
    """Return X^T X, Y^T Y and X^T Y of blocks of bfloat16, or None: for other types, without AMX, where a column is far off."""
    if x.dtype != BFLOAT16 or y.dtype != BFLOAT16 or not has_amx():
        return None
    products = column_products(x, y)
    for gram, mean in zip(products, (x_mean, y_mean), strict=False):
        off = len(x) * mean**2
        if (off > FAR * (np.diag(gram) - off)).any():
            return None
    return products


def _centred(x: np.ndarray, y: np.ndarray, x_mean: np.ndarray, y_mean: np.ndarray) -> list[np.ndarray]:
    """Return X^T X, Y^T Y and X^T Y of blocks less their means."""
    x, y = (part - mean.astype(np.float32) for part, mean in ((x, x_mean), (y, y_mean)))
    return [x.T @ x, y.T @ y, x.T @ y]
