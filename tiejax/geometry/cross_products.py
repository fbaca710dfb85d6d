"""Means and cross-products of two centred tables, from one pass over blocks of rows."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.geometry import table_rows
from tiejax.geometry.products import column_products, has_amx
from tiejax.geometry.table_rows import BFLOAT16, Table, exponents, read_ahead, row_blocks, stored_rows

# Products of uncentred rows lose precision in columns far from 0, by a factor of (mean / standard deviation)^2, which may reach
# FAR. Sums in float32 lose precision with their length.
FAR = 1.0
PAIRS = (0, 0), (1, 1), (0, 1)  # of tables, in the order of the products
MOST_ROWS = 2048  # narrower tables have as many rows in a block as those of this width; wider ones as many as columns


class CrossProducts(NamedTuple):
    """Means of two tables X, Y [rows, width], and the products X^T X, Y^T Y and X^T Y of the centred tables, in float64."""

    rows: int
    source_mean: Float[np.ndarray, " source"]
    target_mean: Float[np.ndarray, " target"]
    source_gram: Float[np.ndarray, "source source"]
    target_gram: Float[np.ndarray, "target target"]
    cross: Float[np.ndarray, "source target"]


def cross_products(source: Table, target: Table) -> CrossProducts:
    """Compute the cross-products of two tables centred on their means.

        X^T Y = sum_b X_b^T Y_b + sum_b n_b (m_b - m) (k_b - k)^T    (Chan, Golub and LeVeque 1983)

    X_b and Y_b are the n_b rows of block b minus the block's means m_b and k_b, so tables far from the origin lose no
    precision. Near the origin, bfloat16 rows are multiplied uncentred and n_b m_b k_b^T is subtracted. Products within a block
    are in float32, sums over blocks in float64. Columns of very small or very large numbers are scaled by powers of two.
    """
    widths = source.shape[1], target.shape[1]
    totals = [np.zeros((widths[i], widths[j])) for i, j in PAIRS]
    counts, uncentred, means = [], [], []
    near = True
    # Four times as many rows as elsewhere, since each block costs a pass over three matrices in float64, but no more than
    # float32 sums can add up accurately.
    blocks = row_blocks(int(source.shape[0]), max(*widths, table_rows.BLOCK_BYTES // max(*widths, MOST_ROWS)))
    for _, (x, y) in read_ahead(lambda block: (stored_rows(source, block), stored_rows(target, block)), blocks):
        powers = [exponents(part, axis=0) for part in (x, y)]
        x, y = (
            np.ldexp(part.astype(np.float32), -power) if power.any() else part
            for part, power in zip((x, y), powers, strict=True)
        )
        block_means = [part.mean(axis=0, dtype=np.float64) for part in (x, y)]
        products = _uncentred(x, y, *block_means) if near else None
        near = products is not None  # a column that is far from 0 in one block is far from 0 in every block
        counts.append(len(x))
        uncentred.append(near)
        means.append([np.ldexp(mean, power) for mean, power in zip(block_means, powers, strict=True)])
        for total, part, (i, j) in zip(totals, products or _centred(x, y, *block_means), PAIRS, strict=True):
            power = np.add.outer(powers[i], powers[j])
            total += np.ldexp(part.astype(np.float64), power) if power.any() else part
    table_means = [np.array(blocks) for blocks in zip(*means, strict=True)]
    return _combined(totals, np.array(counts), np.array(uncentred), table_means)


def _combined(totals: list[np.ndarray], counts: np.ndarray, uncentred: np.ndarray, means: list[np.ndarray]) -> CrossProducts:
    """Return the products of all rows from sums over blocks and block means; uncentred: which blocks were not centred."""
    overall = [np.average(blocks, axis=0, weights=counts) for blocks in means]
    for total, (i, j) in zip(totals, PAIRS, strict=True):
        total += ((means[i] - overall[i]) * counts[:, None]).T @ (means[j] - overall[j])
        total -= (means[i] * (counts * uncentred)[:, None]).T @ means[j]
    return CrossProducts(int(counts.sum()), *overall, *totals)


def _uncentred(x: np.ndarray, y: np.ndarray, x_mean: np.ndarray, y_mean: np.ndarray) -> list[np.ndarray] | None:
    """Return X^T X, Y^T Y and X^T Y of bfloat16 blocks; None for other dtypes, without AMX, or if a column is far from 0."""
    if x.dtype != BFLOAT16 or y.dtype != BFLOAT16 or not has_amx():
        return None
    products = column_products(x, y)
    for gram, mean in zip(products, (x_mean, y_mean), strict=False):
        off = len(x) * mean**2
        if (off > FAR * (np.diag(gram) - off)).any():
            return None
    return products


def _centred(x: np.ndarray, y: np.ndarray, x_mean: np.ndarray, y_mean: np.ndarray) -> list[np.ndarray]:
    """Return X^T X, Y^T Y and X^T Y of blocks centred on their means."""
    x, y = (part - mean.astype(np.float32) for part, mean in ((x, x_mean), (y, y_mean)))
    return [x.T @ x, y.T @ y, x.T @ y]
