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

CHUNK = 2**22  # pairs that are counted at a time


class Bigram(NamedTuple):
    """A bigram model over V tokens.

    Attributes:
        unigram: p(w).
        of_first: c(v).
        different: t(v).
        pairs: the pairs that occur, as v V + w, ascending.
        counts: c(v, w) of each of them.
    """

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

    def given(self, first: Integer[np.ndarray, " places"]) -> Float[np.ndarray, "places vocabulary"]:
        """Return the distributions p(. | first) after each token."""
        every = np.arange(len(self.unigram))
        return self.probabilities(np.repeat(first, len(every)), np.tile(every, len(first))).reshape(len(first), -1)


def bigram(
    first: Integer[np.ndarray, "..."],
    second: Integer[np.ndarray, "..."],
    vocabulary: int,
    counted: Bool[np.ndarray, "..."] | None = None,
) -> Bigram:
    """Return the bigram model of pairs of tokens.

    Args:
        first: the tokens v.
        second: the tokens w, each after the one in the same place of `first`.
        vocabulary: V.
        counted: which pairs are counted; by default all.

    Raises:
        ValueError: there is no pair.
    """
    one, other = (np.asarray(side)[... if counted is None else counted].ravel() for side in (first, second))
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


def bigram_loss(
    train: Integer[np.ndarray, "number context"], held_out: Integer[np.ndarray, "blocks context"], vocabulary: int
) -> float:
    """Return the mean negative log-likelihood of the tokens of blocks, in nats, by the bigram model of other blocks.

    Each block begins with a token that is given and not predicted.
    """
    model = bigram(train[:, :-1], train[:, 1:], vocabulary)
    return float(-np.log(model.probabilities(held_out[:, :-1], held_out[:, 1:])).mean())


def masked_losses(
    train: Integer[np.ndarray, "number context"],
    held_out: Integer[np.ndarray, "blocks context"],
    vocabulary: int,
    most: int = 2000,
) -> dict[str, float]:
    """Return the mean negative log-likelihood of tokens between two others, in nats, by three models of other blocks.

    `left`: p(w | v) after the token v on the left. `right`: the same for reversed text. `both`: their product, divided by its
    sum over all tokens.

    Args:
        train: blocks from which the models are counted.
        held_out: blocks whose inner tokens are scored.
        vocabulary: V.
        most: the number of scored places, spread evenly.
    """
    forward, backward = bigram(train[:, :-1], train[:, 1:], vocabulary), bigram(train[:, 1:], train[:, :-1], vocabulary)
    left, target, right = (held_out[:, start : held_out.shape[1] - 2 + start].ravel() for start in range(3))
    places = np.unique(np.linspace(0, len(target) - 1, min(most, len(target))).astype(int))
    left, target, right = left[places], target[places], right[places]
    both = forward.given(left) * backward.given(right)
    joint = both[np.arange(len(target)), target] / both.sum(axis=1)
    found = {"left": forward.probabilities(left, target), "right": backward.probabilities(right, target), "both": joint}
    return {name: float(-np.log(p).mean()) for name, p in found.items()}
