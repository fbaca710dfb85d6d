"""Tokens by rank of frequency, and how a value of each of them runs over the ranks."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Bands(NamedTuple):
    """Values by bins of token rank: the bin's mean rank, how many tokens, and the quantiles .1, .5 and .9 of their values."""

    rank: Float[np.ndarray, "bins"]
    tokens: Int[np.ndarray, "bins"]
    low: Float[np.ndarray, "bins"]
    median: Float[np.ndarray, "bins"]
    high: Float[np.ndarray, "bins"]


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
    filled = [inside for inside in (place == number for number in range(bins)) if inside.any()]
    low, median, high = np.array([np.quantile(values[inside], (0.1, 0.5, 0.9)) for inside in filled]).T
    mean_rank = np.array([ranks[inside].mean() for inside in filled])
    return Bands(mean_rank, np.array([inside.sum() for inside in filled]), low, median, high)
