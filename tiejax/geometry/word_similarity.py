"""Word similarity: whether the dot products of word vectors rank pairs of words as people do."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

RESAMPLES = 1000


class WordPairs(NamedTuple):
    """Pairs of words as the tokens of each, and the human judgement of each pair."""

    first: list[list[int]]
    second: list[list[int]]
    judgement: Float[np.ndarray, "pairs"]


def word_vectors(table: Float[np.ndarray, "vocabulary width"], words: Sequence[Sequence[int]]) -> Float[np.ndarray, "n width"]:
    """Return the vector of each word: the mean of those of its tokens."""
    return np.stack([np.mean(np.asarray(table, float)[list(tokens)], axis=0) for tokens in words])


def similarity_correlation(table: Float[np.ndarray, "vocabulary width"], pairs: WordPairs) -> float:
    """Return Spearman's correlation of the judgements with the dot products of the two words' vectors.

    Source: Chung et al., ICLR 2021, section 5.
    """
    return float(stats.spearmanr(_products(table, pairs), pairs.judgement).statistic)


def bootstrap_interval(table: Float[np.ndarray, "vocabulary width"], pairs: WordPairs) -> tuple[float, float]:
    """Return the 95 % interval of the correlation over resampled pairs (percentiles of 1,000 resamples, fixed seed).

    Resamples of equal numbers, which occur where there are a handful of pairs, have no correlation and are left out.
    """
    products, rng = _products(table, pairs), np.random.default_rng(0)
    drawn: list[Int[np.ndarray, "pairs"]] = [rng.integers(0, len(products), len(products)) for _ in range(RESAMPLES)]
    spread = [those for those in drawn if np.ptp(products[those]) > 0 and np.ptp(pairs.judgement[those]) > 0]
    found = [float(stats.spearmanr(products[those], pairs.judgement[those]).statistic) for those in spread]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _products(table: np.ndarray, pairs: WordPairs) -> np.ndarray:
    products: np.ndarray = np.sum(word_vectors(table, pairs.first) * word_vectors(table, pairs.second), axis=1)
    return products
