"""How near two embedding tables of the same tokens point: cosines of rows as they are, and after a map fitted between them.

Source: A. Lopardo et al. 2026, arXiv:2603.26663. Tables are read by blocks of rows (`table_rows.py`) and never held whole.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.geometry.cross_products import CrossProducts, products_of
from tiejax.geometry.linear_maps import least_squares_map, orthogonal_map
from tiejax.geometry.table_rows import Table, check_rows, check_tables, chosen_blocks, chosen_rows, read_rows, row_blocks


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
    chosen = chosen_rows(source, target, rows)
    fitted = products_of(source, target, rows, products)
    maps = np.hstack([orthogonal_map(fitted.cross), least_squares_map(fitted)]).astype(np.float32)
    width = target.shape[1]
    scores: dict[str, list[np.ndarray]] = {"identity": [], "procrustes": [], "least_squares": []}
    for block in chosen_blocks(chosen, 4 * max(source.shape[1], 2 * width)):
        x, y = read_rows(source, block), read_rows(target, block)
        if source.shape[1] == width:
            scores["identity"].append(row_cosines(x, y))
        x -= fitted.source_mean.astype(np.float32)
        y -= fitted.target_mean.astype(np.float32)
        mapped = x @ maps
        scores["procrustes"].append(row_cosines(mapped[:, :width], y))
        scores["least_squares"].append(row_cosines(mapped[:, width:], y))
    cosines = {name: np.concatenate(parts) for name, parts in scores.items() if parts}
    means = {name: _mean(values) for name, values in cosines.items()}
    left_out = {name: int(np.isnan(values).sum()) for name, values in cosines.items()}
    return Alignment(means.get("identity"), means["procrustes"], means["least_squares"], fitted.rows, left_out)


def token_cosines(source: Table, target: Table) -> Float[np.ndarray, "rows"]:
    """Return cos(x_i, y_i) of each token's rows as they are; NaN where one of them is zero.

    The lowest are the tokens whose roles differ most. ValueError: tables that do not fit, or whose widths differ.
    """
    number = check_tables(source, target)
    if source.shape[1] != target.shape[1]:
        raise ValueError(f"rows of widths {source.shape[1]} and {target.shape[1]} have no cosine: the widths must be the same")
    blocks = row_blocks(number, 4 * source.shape[1])
    return np.concatenate([row_cosines(read_rows(source, block), read_rows(target, block)) for block in blocks])


def mapped_cosines(
    source: Table, target: Table, rows: Int[np.ndarray, "tokens"], products: CrossProducts, orthogonal: bool = False
) -> Float[np.ndarray, "tokens"]:
    """Return cos((x_i - m) W, y_i - k) of some tokens, W the least-squares or the orthogonal map of the whole tables.

    W = (X^T X)^+ X^T Y, or U V^T where U S V^T = X^T Y (as in `alignment`, which fits to the tokens that it scores); m, k: the
    tables' means. NaN where a vector is zero. rows: ascending. products: `cross_products` of the whole tables.
    ValueError: tables or rows that do not fit.
    """
    check_rows(rows, check_tables(source, target))
    weights = (orthogonal_map(products.cross) if orthogonal else least_squares_map(products)).astype(np.float32)
    source_mean, target_mean = (mean.astype(np.float32) for mean in (products.source_mean, products.target_mean))
    cosines = np.empty(len(rows), np.float32)
    for block in row_blocks(len(rows), 4 * max(source.shape[1], target.shape[1])):
        x, y = read_rows(source, rows[block]), read_rows(target, rows[block])
        cosines[block] = row_cosines((x - source_mean) @ weights, y - target_mean)
    return cosines


def least_squares_chance(rows: int, width: int) -> float:
    """Return about what the least-squares score of unrelated tables is: sqrt(width / (rows - 1)), at most 1.

    Of n centred rows, a regression on d columns explains d / (n - 1) of a target that has nothing to do with them.
    """
    return min(1.0, math.sqrt(width / max(rows - 1, 1)))


def row_cosines(x: Float[np.ndarray, "rows width"], y: Float[np.ndarray, "rows width"]) -> Float[np.ndarray, "rows"]:
    """Return the cosine of every row of x with the same row of y; NaN where one of them is zero."""
    with np.errstate(invalid="ignore"):
        cosines = np.vecdot(x, y) / np.sqrt(np.vecdot(x, x)) / np.sqrt(np.vecdot(y, y))
    return np.clip(cosines, -1, 1)


def _mean(cosines: np.ndarray) -> float | None:
    there = ~np.isnan(cosines)
    return float(cosines[there].mean(dtype=np.float64)) if there.any() else None
