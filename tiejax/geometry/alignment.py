"""Alignment of two embedding tables of the same tokens: mean cosines of their rows, as stored and after a fitted linear map.

Source: A. Lopardo et al. 2026, arXiv:2603.26663. Tables are read in blocks of rows (`table_rows.py`) and never loaded whole.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.geometry import table_rows as tables
from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import Maps, correlations_of, maps_between, whitening
from tiejax.geometry.norms import norms_and_equality
from tiejax.geometry.table_rows import Rows, Table

Means = tuple[Float[np.ndarray, " source"], Float[np.ndarray, " target"]]


class Alignment(NamedTuple):
    """Similarity of two tables: mean cosines between a token's mapped source row and its target row, and correlations.

    Tokens for which one of the two vectors is exactly zero have no cosine and are left out. A cosine is None if no token has
    one under its map, and `identity` also if the widths differ. canonical: the mean canonical correlation.
    """

    identity: float | None
    procrustes: float | None
    least_squares: float | None
    canonical: float


def alignment(source: Table, target: Table) -> Alignment:
    """Return how well the mapped rows of the source point in the direction of the target's rows.

        score = mean_i cos(f(x_i), y_i)

    identity: f(x) = x on the rows as stored, which measures whether the tables are interchangeable; a direction common to all
    rows raises it. The other maps are f(x) = x W on tables centred on their means. procrustes: W = U V^T, where U S V^T = X^T Y
    is the thin SVD (orthogonal; for different widths, with orthonormal rows or columns). least_squares: W = (X^T X)^+ X^T Y. It
    is fitted to the tokens that it scores, so two independent Gaussian tables score about sqrt(width / (rows - 1)), not 0.
    """
    products = cross_products(source, target)
    bases = whitening(products.source_gram), whitening(products.target_gram)
    means = products.source_mean, products.target_mean
    cosines = mapped_cosines(source, target, np.arange(products.rows), means, maps_between(products, bases))
    return Alignment(
        mean_cosine(norms_and_equality(source, target).cosine),
        mean_cosine(cosines.procrustes),
        mean_cosine(cosines.from_source),
        float(correlations_of(products, bases).mean()),
    )


def mapped_cosines(source: Table, target: Table, rows: Int[np.ndarray, " tokens"], means: Means, maps: Maps) -> Maps:
    """Return the cosines [tokens] of selected rows under each map fitted to the whole tables, in one pass over the rows.

    cos((x_i - m) W, y_i - k) for procrustes and from_source, cos((y_i - k) W, x_i - m) for from_target; NaN where a vector is
    zero. rows: ascending. means: m and k, the means of the whole tables. maps: `maps_between` of the whole tables' products.
    """
    weights = Maps(*map(map_in_float32, maps))

    def read(chosen: Rows) -> list[np.ndarray]:
        return [_centred(tables.read_rows(table, chosen), mean) for table, mean in zip((source, target), means, strict=True)]

    parts = []
    blocks = (rows[block] for block in tables.row_blocks(len(rows), 4 * max(source.shape[1], target.shape[1])))
    for _, (x, y) in tables.read_ahead(read, blocks):
        forth = [tables.row_cosines(x @ weight, y) for weight in (weights.procrustes, weights.from_source)]
        parts.append([*forth, tables.row_cosines(y @ weights.from_target, x)])
    return Maps(*map(np.concatenate, zip(*parts, strict=True)))


def least_squares_chance(rows: int, width: int) -> float:
    """Return the approximate least-squares score of unrelated tables: sqrt(width / (rows - 1)), at most 1.

    With n centred rows, a regression on d columns explains a share d / (n - 1) of the variance of an unrelated target.
    """
    return min(1.0, math.sqrt(width / max(rows - 1, 1)))


def _centred(rows: Float[np.ndarray, "rows width"], mean: Float[np.ndarray, " width"]) -> Float[np.ndarray, "rows width"]:
    """Return rows minus the mean in float32, scaled by a power of two if they are very small or very large."""
    power = tables.exponents(rows)
    if power:
        rows, mean = np.ldexp(rows, -power), np.ldexp(mean, -power)
    return rows - mean.astype(np.float32)


def map_in_float32(matrix: Float[np.ndarray, "source target"]) -> Float[np.ndarray, "source target"]:
    """Return a map in float32, scaled by a power of two if its entries are very small or very large; cosines do not change."""
    return np.ldexp(matrix, -tables.exponents(matrix)).astype(np.float32)


def mean_cosine(cosines: Float[np.ndarray, " tokens"] | None) -> float | None:
    """Return the mean of cosines without NaN; None if there are none."""
    return None if cosines is None or np.isnan(cosines).all() else float(np.nanmean(cosines, dtype=np.float64))
