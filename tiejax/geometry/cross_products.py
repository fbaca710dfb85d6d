"""Means and cross-products of two centred tables, in one pass over blocks of rows: all that maps between them are made from."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.geometry.products import column_products
from tiejax.geometry.table_rows import BFLOAT16, Table, chosen_blocks, chosen_rows, held_rows, read_ahead

# Products of rows as they are lose digits where columns are far from 0, by the square of mean over standard deviation.
FAR = 4.0


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

    X^T Y = sum_b (X_b^T Y_b + n_b m_b k_b^T) - n m k^T, with X_b and Y_b the n_b rows of block b less their own means m_b and
    k_b, so that tables far from the origin lose no digits, and m and k the means of all n rows. Of blocks of bfloat16 near
    the origin the brackets are computed as a whole: the rows are then multiplied as they stand, exactly and sooner. Products
    within a block are float32, everything else float64. rows: the ascending rows to use, all if None. ValueError: tables
    that do not fit.
    """
    chosen = chosen_rows(source, target, rows)
    widths = source.shape[1], target.shape[1]
    totals = source_gram, target_gram, cross = [np.zeros((widths[i], widths[j])) for i, j in ((0, 0), (1, 1), (0, 1))]
    counts, means, taken_off = [], [], []
    # Four times as many rows as elsewhere: each block costs a pass over three matrices in float64.
    blocks = chosen_blocks(chosen, max(widths))
    for _, (x, y) in read_ahead(lambda block: (held_rows(source, block), held_rows(target, block)), blocks):
        counts.append(len(x))
        means.append([part.mean(axis=0, dtype=np.float64) for part in (x, y)])
        products = _as_they_stand(x, y, *means[-1])
        taken_off.append(products is None)
        for total, part in zip(totals, products or _centred(x, y, *means[-1]), strict=True):
            total += part
    weights = np.array(counts)
    source_means, target_means = (np.array(of_table) for of_table in zip(*means, strict=True))
    source_mean, target_mean = (np.average(of_table, axis=0, weights=weights) for of_table in (source_means, target_means))
    weights = weights * taken_off
    for total, ours, theirs, mean, other in (
        (source_gram, source_means, source_means, source_mean, source_mean),
        (target_gram, target_means, target_means, target_mean, target_mean),
        (cross, source_means, target_means, source_mean, target_mean),
    ):
        total += (ours * weights[:, None]).T @ theirs
        total -= sum(counts) * np.outer(mean, other)
    return CrossProducts(sum(counts), source_mean, target_mean, source_gram, target_gram, cross)


def _as_they_stand(x: np.ndarray, y: np.ndarray, x_mean: np.ndarray, y_mean: np.ndarray) -> list[np.ndarray] | None:
    """Return X^T X, Y^T Y and X^T Y of blocks of bfloat16; None where another type or the origin's distance forbids that."""
    if x.dtype != BFLOAT16 or y.dtype != BFLOAT16:
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


def products_of(
    source: Table, target: Table, rows: Int[np.ndarray, "tokens"] | None, products: CrossProducts | None
) -> CrossProducts:
    """Return the products, computed if they are None. ValueError where they cannot be of these tables and rows."""
    if products is None:
        return cross_products(source, target, rows)
    chosen = chosen_rows(source, target, rows)
    number = chosen if isinstance(chosen, int) else len(chosen)
    if (products.rows, *products.cross.shape) != (number, source.shape[1], target.shape[1]):
        raise ValueError(
            f"products of {products.rows} rows of widths {products.cross.shape} are not of these tables: "
            f"{number} rows of widths {(source.shape[1], target.shape[1])}"
        )
    return products
