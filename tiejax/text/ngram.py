r"""Bigram models with Witten-Bell smoothing, the loss that a language model must beat to be worth a comparison.

With c(v, w) the number of times that w follows v, c(v) their sum over w, and t(v) the number of different tokens after v,

    p(w | v) = (c(v, w) + t(v) p(w)) / (c(v) + t(v)),    p(w) = (c(w) + t / V) / (c + t),

where p(w) is the unigram model, smoothed in the same way by the uniform distribution over the V tokens: c(w) counts w, c all
tokens, and t the different ones. After a v that does not occur, p(w | v) is p(w).

Source: I. H. Witten and T. C. Bell, The zero-frequency problem, IEEE Transactions on Information Theory 37 (1991), method C;
interpolated as in S. F. Chen and J. Goodman, An empirical study of smoothing techniques for language modeling (1998).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Integer
from scipy import sparse

from tiejax.text.sequences import Sequences

AT_ONCE = 4096  # pairs of neighbours whose distributions are multiplied together

CHUNK = 2**22  # pairs that are counted at a time


class Bigram(NamedTuple):
    """A bigram model over V tokens: p(w), c(v) and t(v), and of the pairs that occur, ascending, v V + w and c(v, w)."""

    unigram: Float[np.ndarray, " vocabulary"]
    of_first: Int[np.ndarray, " vocabulary"]
    different: Int[np.ndarray, " vocabulary"]
    pairs: Int[np.ndarray, " pairs"]
    counts: Int[np.ndarray, " pairs"]

    def probabilities(self, first: Integer[np.ndarray, "..."], second: Integer[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return p(second | first) of pairs of tokens."""
        asked = first.astype(np.int64) * len(self.unigram) + second
        place = np.searchsorted(self.pairs, asked)
        place[place == len(self.pairs)] = 0
        counted = np.where(self.pairs[place] == asked, self.counts[place], 0)
        total, different = self.of_first[first], self.different[first]
        seen = total > 0
        mixed = (counted + different * self.unigram[second]) / np.where(seen, total + different, 1)
        return np.where(seen, mixed, self.unigram[second])

    def mixture(self, first: Int[np.ndarray, " places"]) -> tuple[sparse.csr_array, Float[np.ndarray, " places"]]:
        """Return c(v, .) / (c(v) + t(v)), sparse, `[places, vocabulary]`, and the weight of p(w), after each token v."""
        number = len(self.unigram)
        ends = np.concatenate([[0], np.cumsum(self.different)])
        counts = sparse.csr_array((self.counts.astype(float), self.pairs % number, ends), (number, number))
        total = np.maximum(self.of_first + self.different, 1)[first]
        weight = np.where(self.of_first[first] > 0, self.different[first] / total, 1.0)
        return sparse.csr_array(counts[first].multiply(1 / total[:, None])), weight


def bigram(
    first: Integer[np.ndarray, "..."],
    second: Integer[np.ndarray, "..."],
    vocabulary: int,
    counted: Bool[np.ndarray, "..."] | None = None,
) -> Bigram:
    """Return the bigram model of pairs of tokens, each of `first` and of the one in the same place of `second` after it.

    vocabulary: V. counted: which pairs are counted; by default all. Raises ValueError if there is no pair, or for a token that
    is not below V.
    """
    which = ... if counted is None else counted
    one, other = (_tokens(np.asarray(side)[which], vocabulary).ravel() for side in (first, second))
    if not len(other):
        raise ValueError("bigram: expected at least one pair of tokens")
    pairs, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for start in range(0, len(one), CHUNK):  # sorting all pairs at once would take many times the memory of the text
        here = one[start : start + CHUNK].astype(np.int64) * vocabulary + other[start : start + CHUNK]
        found, number = np.unique(here, return_counts=True)
        pairs, place = np.unique(np.concatenate([pairs, found]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, number])).astype(np.int64)
    count = np.bincount(other, minlength=vocabulary)
    occurring = np.count_nonzero(count)
    unigram = (count + occurring / vocabulary) / (count.sum() + occurring)
    of_first, different = np.bincount(one, minlength=vocabulary), np.bincount(pairs // vocabulary, minlength=vocabulary)
    return Bigram(unigram, of_first, different, pairs, counts)


def _tokens(tokens: Integer[np.ndarray, "..."], vocabulary: int) -> Integer[np.ndarray, "..."]:
    """Return tokens; raises ValueError unless all are from 0 to V - 1."""
    found = np.asarray(tokens)
    if found.size and not 0 <= found.min() <= found.max() < vocabulary:
        raise ValueError(f"tokens from {found.min()} to {found.max()}, but the vocabulary has {vocabulary}, from 0 on")
    return found


def bigram_loss(
    train: Integer[np.ndarray, "number context"], held_out: Integer[np.ndarray, "blocks context"], vocabulary: int
) -> float:
    """Return the mean negative log-likelihood of the tokens of blocks, in nats, by the bigram model of other blocks.

    Each block begins with a token that is given and not predicted.
    """
    for name, blocks in (("held_out", held_out), ("train", train)):
        if blocks.ndim != 2 or blocks.shape[1] < 2 or not len(blocks):
            raise ValueError(f"{name}: expected blocks of at least two tokens, got an array of shape {blocks.shape}")
        if not np.issubdtype(blocks.dtype, np.integer):
            raise ValueError(f"{name}: expected integers, got {blocks.dtype}")
    model, held_out = bigram(train[:, :-1], train[:, 1:], vocabulary), _tokens(held_out, vocabulary)
    return float(-np.log(model.probabilities(held_out[:, :-1], held_out[:, 1:])).mean())


def masked_losses(
    train: Sequences,
    held_out: Sequences,
    vocabulary: int,
    predicted: Bool[np.ndarray, " vocabulary"] | None = None,
    most: int = 50_000,
) -> dict[str, float]:
    r"""Return the mean negative log-likelihood of tokens between two others, in nats, by three models of other sentences.

    `left`: l(w) = p(w | v) after the token v on the left. `right`: r(w), the same for reversed text. `both`: their product,
    l(w) r(w) / \sum_w' l(w') r(w').

    train: sentences from which the models are counted; no pair of tokens is in two sentences. held_out: sentences whose tokens
    between two others are scored, at `most` places, spread evenly. vocabulary: V. predicted: the tokens that are predicted;
    others are only neighbours (default: all tokens).
    """
    predicted = np.ones(vocabulary, bool) if predicted is None else predicted
    same = np.diff(_sentence_of(train)) == 0
    first, second = train.ids[:-1], train.ids[1:]
    forward = bigram(first, second, vocabulary, same & predicted[second])
    backward = bigram(second, first, vocabulary, same & predicted[first])

    of_place, held_ids = _sentence_of(held_out), _tokens(held_out.ids, vocabulary)
    places = 1 + np.flatnonzero((of_place[:-2] == of_place[2:]) & predicted[held_ids[1:-1]])
    if not len(places):
        raise ValueError("held_out: no token between two others of its sentence is predicted")
    places = places[np.unique(np.linspace(0, len(places) - 1, min(most, len(places))).astype(int))]
    before, target, after = (held_ids[places + shift].astype(np.int64) for shift in (-1, 0, 1))
    left, right = forward.probabilities(before, target), backward.probabilities(after, target)
    found = {"left": left, "right": right, "both": left * right / _product_sums(forward, before, backward, after)}
    return {name: float(-np.log(p).mean()) for name, p in found.items()}


def _sentence_of(sequences: Sequences) -> Int[np.ndarray, " tokens"]:
    """Return the number of the sentence of every token."""
    return np.repeat(np.arange(len(sequences.offsets) - 1), np.diff(sequences.offsets))


def _product_sums(
    one: Bigram, first: Int[np.ndarray, " places"], other: Bigram, second: Int[np.ndarray, " places"]
) -> Float[np.ndarray, " places"]:
    r"""Return \sum_w p_one(w | first) p_other(w | second), from the counts that are not 0."""
    pairs, place = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    parts = []
    for start in range(0, pairs.shape[1], AT_ONCE):
        of_one, of_other = pairs[:, start : start + AT_ONCE]
        (counts, weight), (other_counts, other_weight) = one.mixture(of_one), other.mixture(of_other)
        parts.append(
            counts.multiply(other_counts).sum(axis=1)
            + other_weight * (counts @ other.unigram)
            + weight * (other_counts @ one.unigram)
            + weight * other_weight * (one.unigram @ other.unigram)
        )
    return np.asarray(np.concatenate(parts)[place.ravel()])
