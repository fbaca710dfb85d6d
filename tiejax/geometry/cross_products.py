"""Means and cross-products of two centred tables, in one pass over blocks of rows: all that maps between them are made from."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.geometry.table_rows import Table, chosen_blocks, chosen_rows, read_rows


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
    block b less their own means m_b and k_b, so that tables far from the origin lose no digits. Products within a block are
    float32, sums over blocks float64. rows: the ascending rows to use, all if None. ValueError: tables that do not fit.
    """
    chosen = chosen_rows(source, target, rows)
    widths = source.shape[1], target.shape[1]
    source_gram, target_gram, cross = (np.zeros((widths[i], widths[j])) for i, j in ((0, 0), (1, 1), (0, 1)))
    counts, source_means, target_means = [], [], []
    for block in chosen_blocks(chosen, 4 * max(widths)):
        x, y = read_rows(source, block), read_rows(target, block)
        counts.append(len(x))
        source_means.append(x.mean(axis=0, dtype=np.float64))
        target_means.append(y.mean(axis=0, dtype=np.float64))
        x -= source_means[-1].astype(np.float32)
        y -= target_means[-1].astype(np.float32)
        source_gram += x.T @ x
        target_gram += y.T @ y
        cross += x.T @ y
    source_mean, between_x = _between_blocks(source_means, counts)
    target_mean, between_y = _between_blocks(target_means, counts)
    source_gram += between_x.T @ between_x
    target_gram += between_y.T @ between_y
    cross += between_x.T @ between_y
    return CrossProducts(sum(counts), source_mean, target_mean, source_gram, target_gram, cross)


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


def swapped(products: CrossProducts) -> CrossProducts:
    """Return the cross-products of (source, target) as those of (target, source)."""
    return CrossProducts(
        products.rows,
        products.target_mean,
        products.source_mean,
        products.target_gram,
        products.source_gram,
        products.cross.T,
    )


def _between_blocks(means: list[np.ndarray], counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of all rows, and sqrt(n_b) (m_b - m) of each block."""
    mean = np.average(means, axis=0, weights=counts)
    return mean, np.sqrt(counts)[:, None] * (np.array(means) - mean)
