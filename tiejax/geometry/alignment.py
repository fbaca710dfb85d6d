"""How near two embedding tables of the same tokens are: maps from one to the other, neighbours, canonical correlations.

Source: A. Lopardo et al. 2026, arXiv:2603.26663. Tables are read by blocks of rows (`tables.py`) and never held whole.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg

from tiejax.geometry.linear_maps import orthogonal_map, whitening
from tiejax.geometry.neighbours import Overlap as Overlap
from tiejax.geometry.neighbours import neighbour_overlap as neighbour_overlap
from tiejax.geometry.tables import Rows, check_pair, check_rows, read_rows, row_blocks
from tiejax.geometry.tables import Table as Table

# Published for OLMo-1B (same source): how well the untied model's output and input tables give the tied model's table.
OLMO_1B = {
    "least_squares": {"output": 0.719, "input": 0.525},
    "neighbour_overlap": {"output": 0.733, "input": 0.496},
}


class CrossProducts(NamedTuple):
    """Means, and products X^T X, Y^T Y and X^T Y, of two tables X, Y [rows, width] centred on their means; float64."""

    rows: int
    source_mean: Float[np.ndarray, "source"]
    target_mean: Float[np.ndarray, "target"]
    source_gram: Float[np.ndarray, "source source"]
    target_gram: Float[np.ndarray, "target target"]
    cross: Float[np.ndarray, "source target"]


class Alignment(NamedTuple):
    """Mean cosine between a token's row in the target and its row in the source, mapped; one score for each map.

    None: identity where the widths differ, any map that leaves out every token. tokens: the rows that were compared.
    left_out: by map, how many of them have no cosine, because one of their two vectors is exactly zero.
    """

    identity: float | None
    procrustes: float | None
    least_squares: float | None
    tokens: int
    left_out: dict[str, int]


def cross_products(source: Table, target: Table, rows: Int[np.ndarray, "tokens"] | None = None) -> CrossProducts:
    """Compute the cross-products of two tables centred on their means, in one pass over blocks of rows.

    X^T Y = sum_b X_b^T Y_b + sum_b n_b (m_b - m) (k_b - k)^T (Chan, Golub and LeVeque 1983), with X_b and Y_b the n_b rows of
    block b less their own means m_b and k_b, so that tables far from the origin lose no digits. Products within a block are
    float32, sums over blocks float64. rows: the ascending rows to use, all if None. ValueError: tables that do not fit.
    """
    chosen = _chosen(source, target, rows)
    widths = source.shape[1], target.shape[1]
    source_gram, target_gram, cross = (np.zeros((widths[i], widths[j])) for i, j in ((0, 0), (1, 1), (0, 1)))
    counts, source_means, target_means = [], [], []
    for block in _blocks(chosen, 4 * max(widths)):
        x, y = read_rows(source, block), read_rows(target, block)
        counts.append(len(x))
        source_means.append(x.mean(axis=0, dtype=np.float64))
        target_means.append(y.mean(axis=0, dtype=np.float64))
        x -= source_means[-1].astype(np.float32)
        y -= target_means[-1].astype(np.float32)
        source_gram += x.T @ x
        target_gram += y.T @ y
        cross += x.T @ y
    source_mean, between_x = _between(source_means, counts)
    target_mean, between_y = _between(target_means, counts)
    source_gram += between_x.T @ between_x
    target_gram += between_y.T @ between_y
    cross += between_x.T @ between_y
    return CrossProducts(sum(counts), source_mean, target_mean, source_gram, target_gram, cross)


def alignment(
    source: Table,
    target: Table,
    rows: Int[np.ndarray, "tokens"] | None = None,
    products: CrossProducts | None = None,
) -> Alignment:
    """Score how well the rows of the source, mapped, point where the rows of the target do.

    score = mean_i cos(f(x_i), y_i). identity: f(x) = x, of the rows as they are, which asks whether the tables are
    interchangeable; a direction common to all rows counts. On tables centred on their means, f(x) = x W with
    procrustes: W = U V^T, where U S V^T = X^T Y is the thin SVD: orthogonal, for different widths with orthonormal rows or
    columns; least_squares: W = (X^T X)^+ X^T Y. Fitted to the tokens that it scores, it gives two independent
    Gaussian tables about sqrt(width / (rows - 1)), not 0.

    rows: the ascending rows to fit and to score, all if None. products: `cross_products` of the same tables and rows,
    where they are known already. ValueError: tables that do not fit.
    """
    chosen = _chosen(source, target, rows)
    found = _products(source, target, rows, products)
    maps = np.hstack([orthogonal_map(found.cross), least_squares_map(found)]).astype(np.float32)
    width = target.shape[1]
    scores: dict[str, list[np.ndarray]] = {"identity": [], "procrustes": [], "least_squares": []}
    for block in _blocks(chosen, 4 * max(source.shape[1], 2 * width)):
        x, y = read_rows(source, block), read_rows(target, block)
        if source.shape[1] == width:
            scores["identity"].append(row_cosines(x, y))
        x -= found.source_mean.astype(np.float32)
        y -= found.target_mean.astype(np.float32)
        mapped = x @ maps
        scores["procrustes"].append(row_cosines(mapped[:, :width], y))
        scores["least_squares"].append(row_cosines(mapped[:, width:], y))
    cosines = {name: np.concatenate(parts) for name, parts in scores.items() if parts}
    means = {name: _mean(values) for name, values in cosines.items()}
    left_out = {name: int(np.isnan(values).sum()) for name, values in cosines.items()}
    return Alignment(means.get("identity"), means["procrustes"], means["least_squares"], found.rows, left_out)


def token_cosines(source: Table, target: Table) -> Float[np.ndarray, "rows"]:
    """Return cos(x_i, y_i) of each token's rows as they are; NaN where one of them is zero.

    The lowest are the tokens whose roles differ most. ValueError: tables that do not fit, or whose widths differ.
    """
    number = check_pair(source, target)
    if source.shape[1] != target.shape[1]:
        raise ValueError(f"rows of widths {source.shape[1]} and {target.shape[1]} have no cosine: the widths must be the same")
    blocks = row_blocks(number, 4 * source.shape[1])
    return np.concatenate([row_cosines(read_rows(source, block), read_rows(target, block)) for block in blocks])


def canonical_correlations(
    first: Table, second: Table, products: CrossProducts | None = None
) -> Float[np.ndarray, "min_width"]:
    """Return the canonical correlations of two tables, in descending order, in [0, 1] (Hotelling 1936).

    The singular values of (X^T X)^(-1/2) X^T Y (Y^T Y)^(-1/2), for tables centred on their means, as many as the narrower is
    wide. Directions in which a table has no variance correlate with nothing: 0. Where a table is as wide as it has rows, all
    others are 1, whatever stands in it. products: `cross_products` of the two, where they are known already. ValueError:
    tables that do not fit.
    """
    found = _products(first, second, None, products)
    whitened = whitening(found.source_gram).T @ found.cross @ whitening(found.target_gram)
    if whitened.shape[0] < whitened.shape[1]:
        whitened = whitened.T
    # Of the Gram matrix, in less time than an SVD takes; what that loses is far below the rounding of the products.
    squares = linalg.eigvalsh(whitened.T @ whitened)[::-1] if whitened.size else np.zeros(0)
    return np.pad(np.sqrt(np.clip(squares, 0, 1)), (0, min(found.cross.shape) - len(squares)))


def _chosen(source: Table, target: Table, rows: np.ndarray | None) -> int | np.ndarray:
    number = check_pair(source, target)
    if rows is None:
        return number
    check_rows(rows, number)
    return rows


def _products(source: Table, target: Table, rows: np.ndarray | None, given: CrossProducts | None) -> CrossProducts:
    if given is None:
        return cross_products(source, target, rows)
    chosen = _chosen(source, target, rows)
    number = chosen if isinstance(chosen, int) else len(chosen)
    if (given.rows, *given.cross.shape) != (number, source.shape[1], target.shape[1]):
        raise ValueError(
            f"products of {given.rows} rows of widths {given.cross.shape} are not of these tables: "
            f"{number} rows of widths {(source.shape[1], target.shape[1])}"
        )
    return given


def _blocks(chosen: int | np.ndarray, bytes_per_row: int) -> Iterator[Rows]:
    if isinstance(chosen, int):
        return row_blocks(chosen, bytes_per_row)
    return (chosen[block] for block in row_blocks(len(chosen), bytes_per_row))


def _between(means: list[np.ndarray], counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of all rows, and sqrt(n_b) (m_b - m) of each block."""
    mean = np.average(means, axis=0, weights=counts)
    return mean, np.sqrt(counts)[:, None] * (np.array(means) - mean)


def least_squares_map(products: CrossProducts) -> Float[np.ndarray, "source target"]:
    """Return W = (X^T X)^+ X^T Y, which maps centred source rows to target rows with the least squared error."""
    basis = whitening(products.source_gram)
    return basis @ (basis.T @ products.cross)


def row_cosines(x: Float[np.ndarray, "rows width"], y: Float[np.ndarray, "rows width"]) -> Float[np.ndarray, "rows"]:
    """Return the cosine of every row of x with the same row of y; NaN where one of them is zero."""
    with np.errstate(invalid="ignore"):
        cosines = np.vecdot(x, y) / np.sqrt(np.vecdot(x, x)) / np.sqrt(np.vecdot(y, y))
    return np.clip(cosines, -1, 1)


def _mean(cosines: np.ndarray) -> float | None:
    there = ~np.isnan(cosines)
    return float(cosines[there].mean(dtype=np.float64)) if there.any() else None
