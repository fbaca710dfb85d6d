"""Where a model's input and output tables stand: equal or not, their norms by token rank, and how far their roles part."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from tiejax.geometry.alignment import CrossProducts, least_squares_map, row_cosines
from tiejax.geometry.linear_maps import orthogonal_map
from tiejax.geometry.tables import Table, check_pair, check_rows, read_rows, row_blocks


class Norms(NamedTuple):
    """Euclidean norms of the rows of two tables. differing: rows in which any value differs; largest: the largest |difference|.

    Of one table alone, second, differing and largest are None.
    """

    first: Float[np.ndarray, "rows"]
    second: Float[np.ndarray, "rows"] | None
    differing: int | None
    largest: float | None


class Bands(NamedTuple):
    """Values by bins of token rank: the bin's mean rank, how many tokens, and the quantiles .1, .5 and .9 of their values."""

    rank: Float[np.ndarray, "bins"]
    tokens: Int[np.ndarray, "bins"]
    low: Float[np.ndarray, "bins"]
    median: Float[np.ndarray, "bins"]
    high: Float[np.ndarray, "bins"]


def norms_and_equality(first: Table, second: Table | None = None) -> Norms:
    """Compare two tables value by value, and measure their rows, in one pass over blocks of rows.

    Tables of different widths differ in every row. ValueError: tables of different heights, or with values not finite.
    """
    rows = int(first.shape[0]) if second is None else check_pair(first, second)
    found = np.empty(rows, np.float32), np.empty(rows, np.float32)
    differing, largest = 0, 0.0
    for block in row_blocks(rows, 4 * first.shape[1]):
        x = read_rows(first, block)
        found[0][block] = np.sqrt(np.vecdot(x, x))
        if second is None:
            continue
        y = read_rows(second, block)
        found[1][block] = np.sqrt(np.vecdot(y, y))
        if x.shape != y.shape:
            differing, largest = rows, math.nan
            continue
        x -= y
        apart = np.abs(x, out=x).max(axis=1)
        differing += int((apart > 0).sum())
        largest = max(largest, float(apart.max()))
    return Norms(found[0], found[1], differing, largest) if second is not None else Norms(found[0], None, None, None)


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


def mapped_cosines(
    source: Table, target: Table, rows: Int[np.ndarray, "tokens"], products: CrossProducts, orthogonal: bool = False
) -> Float[np.ndarray, "tokens"]:
    """Return cos((x_i - m) W, y_i - k) of some tokens, W the least-squares or the orthogonal map of the whole tables.

    W = (X^T X)^+ X^T Y, or U V^T where U S V^T = X^T Y (as in `alignment`, which fits to the tokens that it scores); m, k: the
    tables' means. NaN where a vector is zero. rows: ascending. products: `cross_products` of the whole tables.
    ValueError: tables or rows that do not fit.
    """
    check_rows(rows, check_pair(source, target))
    weights = (orthogonal_map(products.cross) if orthogonal else least_squares_map(products)).astype(np.float32)
    source_mean, target_mean = (mean.astype(np.float32) for mean in (products.source_mean, products.target_mean))
    found = np.empty(len(rows), np.float32)
    for block in row_blocks(len(rows), 4 * max(source.shape[1], target.shape[1])):
        x, y = read_rows(source, rows[block]), read_rows(target, rows[block])
        found[block] = row_cosines((x - source_mean) @ weights, y - target_mean)
    return found


def least_squares_chance(rows: int, width: int) -> float:
    """Return about what the least-squares score of unrelated tables is: sqrt(width / (rows - 1)), at most 1.

    Of n centred rows, a regression on d columns explains d / (n - 1) of a target that has nothing to do with them.
    """
    return min(1.0, math.sqrt(width / max(rows - 1, 1)))


def largest_canonical_chance(rows: int, first: int, second: int) -> float:
    """Return about the largest canonical correlation of unrelated tables of these widths, at most 1.

    sqrt(a (1 - b)) + sqrt(b (1 - a)), a = first / (rows - 1), b = second / (rows - 1) (Wachter 1980).
    """
    a, b = (min(width / max(rows - 1, 1), 1.0) for width in (first, second))
    return 1.0 if a + b >= 1 else math.sqrt(a * (1 - b)) + math.sqrt(b * (1 - a))


def frequency_ranks(counts: Int[np.ndarray, "tokens"]) -> Int[np.ndarray, "tokens"]:
    """Return each token's rank by falling count, from 1; of equally frequent tokens the lower id ranks first."""
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
    return ranks


def bands_by_rank(
    values: Float[np.ndarray, "tokens"],
    ranks: Int[np.ndarray, "tokens"],
    chosen: Bool[np.ndarray, "tokens"] | None = None,
    bins: int = 40,
) -> Bands:
    """Sort values into `bins` bins of equal width in ln(rank); bins without a token are left out, and so are NaNs.

    chosen: the tokens to take, all if None.
    """
    there = ~np.isnan(values) if chosen is None else chosen & ~np.isnan(values)
    values, ranks = values[there], ranks[there]
    if not len(values):
        empty = np.empty(0)
        return Bands(empty, np.empty(0, np.int64), empty, empty, empty)
    edges = np.geomspace(1, ranks.max() + 1, bins + 1)
    place = np.clip(np.searchsorted(edges, ranks, side="right") - 1, 0, bins - 1)
    members = [place == number for number in range(bins)]
    members = [one for one in members if one.any()]
    low, median, high = np.array([np.quantile(values[one], (0.1, 0.5, 0.9)) for one in members]).T
    mean_rank = np.array([ranks[one].mean() for one in members])
    return Bands(mean_rank, np.array([one.sum() for one in members]), low, median, high)


def standing(
    least_squares: float | None,
    overlap: float,
    least_squares_marks: Mapping[str, float],
    overlap_marks: Mapping[str, float],
    chance: float,
) -> str:
    """Say how near two tables are beside published marks: `near`, `between` or `apart`.

    near: both scores at least at the upper mark (a tied table against the output table of its untied twin). apart: both
    below the lower mark (against the input table). between: anything else. The least-squares score is left out of the
    judgement where its chance level reaches the lower mark, so that any two tables would pass.
    """
    upper, lower = [overlap >= overlap_marks["output"]], [overlap < overlap_marks["input"]]
    if least_squares is not None and chance < least_squares_marks["input"]:
        upper.append(least_squares >= least_squares_marks["output"])
        lower.append(least_squares < least_squares_marks["input"])
    return "near" if all(upper) else "apart" if all(lower) else "between"
