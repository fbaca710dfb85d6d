"""Word similarity: rank correlation between dot products of word vectors and human judgements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

RESAMPLES = 1000


class WordPairs(NamedTuple):
    """Pairs of words, each as its tokens, and the human judgement of each pair."""

    first: list[list[int]]
    second: list[list[int]]
    judgement: Float[np.ndarray, " pairs"]


def word_vectors(table: Float[np.ndarray, "vocabulary width"], words: Sequence[Sequence[int]]) -> Float[np.ndarray, "n width"]:
    """Return the vector of each word: the mean of the vectors of its tokens."""
    return np.stack([np.mean(np.asarray(table, float)[list(tokens)], axis=0) for tokens in words])


def similarity_correlation(table: Float[np.ndarray, "vocabulary width"], pairs: WordPairs) -> float:
    """Return Spearman's correlation between the judgements and the dot products of the two word vectors.

    Source: Chung et al., ICLR 2021, section 5.
    """
    return float(stats.spearmanr(_products(table, pairs), pairs.judgement).statistic)


def bootstrap_interval(table: Float[np.ndarray, "vocabulary width"], pairs: WordPairs) -> tuple[float, float]:
    """Return the 95 % interval of the correlation over resampled pairs (percentiles of 1,000 resamples, fixed seed).

    Resamples in which all values are equal, which occur with a handful of pairs, have no correlation and are left out.
    """
    products, rng = _products(table, pairs), np.random.default_rng(0)
    drawn: list[Int[np.ndarray, "pairs"]] = [rng.integers(0, len(products), len(products)) for _ in range(RESAMPLES)]
    spread = [sample for sample in drawn if np.ptp(products[sample]) > 0 and np.ptp(pairs.judgement[sample]) > 0]
    found = [float(stats.spearmanr(products[sample], pairs.judgement[sample]).statistic) for sample in spread]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _products(table: np.ndarray, pairs: WordPairs) -> np.ndarray:
    products: np.ndarray = np.sum(word_vectors(table, pairs.first) * word_vectors(table, pairs.second), axis=1)
    return products
