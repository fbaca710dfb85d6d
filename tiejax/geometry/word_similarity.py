"""Word similarity: rank correlation between dot products of word vectors and human judgements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats


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
    products = np.sum(word_vectors(table, pairs.first) * word_vectors(table, pairs.second), axis=1)
    return float(stats.spearmanr(products, pairs.judgement).statistic)
