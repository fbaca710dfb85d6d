"""Frequency ranks of tokens, and quantiles of a value by bins of rank."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Integer


class Bands(NamedTuple):
    """Values by bins of token rank: mean rank, number of tokens, and the quantiles .1, .5 and .9 of the values in each bin."""

    rank: Float[np.ndarray, " bins"]
    tokens: Int[np.ndarray, " bins"]
    low: Float[np.ndarray, " bins"]
    median: Float[np.ndarray, " bins"]
    high: Float[np.ndarray, " bins"]


def frequency_ranks(counts: Integer[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
    """Return the rank of each token by descending count, from 1; of equally frequent tokens the lower id ranks first."""
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts.astype(np.int64), kind="stable")] = np.arange(1, len(counts) + 1)
    return ranks


def bands_by_rank(
    values: Float[np.ndarray, " tokens"],
    ranks: Int[np.ndarray, " tokens"],
    chosen: Bool[np.ndarray, " tokens"] | None = None,
    bins: int = 40,
) -> Bands:
    """Return quantiles of values in `bins` bins of equal width in ln(rank); NaNs and empty bins are left out.

    chosen: the tokens to use; None for all.
    """
    used = ~np.isnan(values) if chosen is None else chosen & ~np.isnan(values)
    values, ranks = values[used], ranks[used]
    if not len(values):
        empty = np.empty(0)
        return Bands(empty, np.empty(0, np.int64), empty, empty, empty)
    edges = np.geomspace(1, ranks.max() + 1, bins + 1)
    place = np.clip(np.searchsorted(edges, ranks, side="right") - 1, 0, bins - 1)
    filled = [inside for inside in (place == number for number in range(bins)) if inside.any()]
    low, median, high = np.array([np.quantile(values[inside], (0.1, 0.5, 0.9)) for inside in filled]).T
    mean_rank = np.array([ranks[inside].mean() for inside in filled])
    return Bands(mean_rank, np.array([inside.sum() for inside in filled]), low, median, high)
