"""Witten-Bell bigrams against a count of every pair in Python."""

import math

import numpy as np
import pytest

from tiejax.text import ngram
from tiejax.text.ngram import bigram, bigram_loss, masked_losses

VOCABULARY = 7


def by_hand(train, first, second, vocabulary=VOCABULARY):
    """Return p(second | first), counted token by token."""
    pairs = [(block[i], block[i + 1]) for block in train.tolist() for i in range(len(block) - 1)]
    tokens = [w for _, w in pairs]
    kinds = len(set(tokens))
    unigram = (tokens.count(second) + kinds / vocabulary) / (len(tokens) + kinds)
    after = [w for v, w in pairs if v == first]
    if not after:
        return unigram
    different = len(set(after))
    return (after.count(second) + different * unigram) / (len(after) + different)


@pytest.fixture(scope="module")
def blocks():
    rng = np.random.default_rng(0)
    train = rng.choice(VOCABULARY - 1, (6, 9), p=[0.4, 0.3, 0.15, 0.1, 0.05, 0.0])  # neither 5 nor 6 occurs
    return train, rng.choice(VOCABULARY, (4, 9))


@pytest.mark.parametrize("chunk", [ngram.CHUNK, 5])
def test_probabilities_are_those_of_the_formula(blocks, chunk, monkeypatch):
    """Also if pairs are counted a few at a time."""
    monkeypatch.setattr(ngram, "CHUNK", chunk)
    train, _ = blocks
    model = bigram(train[:, :-1], train[:, 1:], VOCABULARY)
    every = np.arange(VOCABULARY)
    found = model.given(every)
    expected = [[by_hand(train, v, w) for w in range(VOCABULARY)] for v in range(VOCABULARY)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    assert (found > 0).all()


def test_loss_of_blocks(blocks):
    train, held_out = blocks
    pairs = [(block[i], block[i + 1]) for block in held_out.tolist() for i in range(len(block) - 1)]
    expected = -np.mean([math.log(by_hand(train, v, w)) for v, w in pairs])
    assert bigram_loss(train, held_out, VOCABULARY) == pytest.approx(expected, rel=1e-12)


def test_only_counted_pairs_are_counted(blocks):
    train, _ = blocks
    counted = np.ones((6, 8), bool)
    counted[2:] = False
    some, expected = bigram(train[:, :-1], train[:, 1:], VOCABULARY, counted), bigram(train[:2, :-1], train[:2, 1:], VOCABULARY)
    for one, other in zip(some, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_text_is_refused():
    with pytest.raises(ValueError, match="expected at least one pair"):
        bigram(np.zeros(0, int), np.zeros(0, int), 4)


def test_masked_places(blocks):
    train, held_out = blocks
    found = masked_losses(train, held_out, VOCABULARY)
    reverse, losses = train[:, ::-1], {"left": [], "right": [], "both": []}
    for block in held_out.tolist():
        for i in range(1, len(block) - 1):
            left = [by_hand(train, block[i - 1], w) for w in range(VOCABULARY)]
            right = [by_hand(reverse, block[i + 1], w) for w in range(VOCABULARY)]
            product = [one * other for one, other in zip(left, right, strict=True)]
            for name, p in (("left", left), ("right", right), ("both", [each / sum(product) for each in product])):
                losses[name].append(-math.log(p[block[i]]))
    assert found == {name: pytest.approx(np.mean(values), rel=1e-12) for name, values in losses.items()}
