"""Pairs of frequent words that occur next to the same tokens."""

import numpy as np
from jaxtyping import Float, Int, Integer


def neighbours(
    ids: Integer[np.ndarray, " tokens"], words: Integer[np.ndarray, " words"], size: int
) -> tuple[Int[np.ndarray, "words size"], Int[np.ndarray, "words size"]]:
    """Return how often each token comes right before, and right after, each word of a text; size: of the vocabulary."""
    place = np.full(size, -1)
    place[words] = np.arange(len(words))

    def counted(word: np.ndarray, other: np.ndarray) -> np.ndarray:
        number = place[word]
        cells = number[number >= 0] * size + other[number >= 0].astype(int)
        return np.bincount(cells, minlength=len(words) * size).reshape(len(words), size)

    return counted(ids[1:], ids[:-1]), counted(ids[:-1], ids[1:])


def similarity(counts: Int[np.ndarray, "words size"]) -> Float[np.ndarray, "words words"]:
    """Return sum_t sqrt(p_t q_t) of the shares p, q of every two words (Bhattacharyya's coefficient); 0 without counts."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    roots = np.sqrt(shares)
    return np.asarray(roots @ roots.T)


def most_similar(
    ids: Integer[np.ndarray, " tokens"], words: Integer[np.ndarray, " words"], size: int, number: int
) -> Int[np.ndarray, "pairs 2"]:
    """Return the `number` pairs of words with the most similar neighbours on both sides, or all pairs if there are fewer.

    The similarity is the mean of those of the tokens before and of the tokens after. size: of the vocabulary.
    """
    before, after = (similarity(counts) for counts in neighbours(ids, words, size))
    first, second = np.triu_indices(len(words), 1)
    order = np.argsort(-((before + after) / 2)[first, second], kind="stable")[:number]
    return np.stack([words[first[order]], words[second[order]]], axis=1).astype(int)
