"""Witten-Bell bigrams against a count of every pair in Python."""

import inspect
import itertools
import math

import numpy as np
import pytest

from tiejax.text import ngram
from tiejax.text.ngram import bigram, bigram_loss, masked_losses
from tiejax.text.sequences import Sequences

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
    found = model.probabilities(every[:, None], every)
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


@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
def test_tokens_outside_the_vocabulary_are_refused(blocks, wrong):
    train, held_out = blocks
    outside = held_out.copy()
    outside[0, 1] = wrong
    for one, other in ((train, outside), (outside, held_out)):
        with pytest.raises(ValueError, match=f"but the vocabulary has {VOCABULARY}, from 0 on"):
            bigram_loss(one, other, VOCABULARY)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda blocks: blocks[0], r"expected blocks of at least two tokens, got an array of shape \(9,\)"),
        (lambda blocks: blocks[:0], r"expected blocks of at least two tokens, got an array of shape \(0, 9\)"),
        (lambda blocks: blocks.astype(float), "expected integers, got float64"),
    ],
)
def test_blocks_that_are_none_are_named(blocks, change, words):
    unchecked = inspect.unwrap(bigram_loss)  # without the check of signatures
    for place, name in enumerate(("train", "held_out")):
        wrong = [change(one) if place == number else one for number, one in enumerate(blocks)]
        with pytest.raises(ValueError, match=f"^{name}: {words}$"):
            unchecked(*wrong, VOCABULARY)


@pytest.fixture(scope="module")
def sentences():
    """Training and held-out sentences of 2 to 6 tokens; 0 begins and 1 ends each of them."""
    rng = np.random.default_rng(1)

    def some(number, tokens):
        return [[0, *rng.choice(tokens, rng.integers(0, 5)).tolist(), 1] for _ in range(number)]

    return some(12, [2, 3, 4, 5]), some(9, [2, 3, 4, 5, 6])  # 6 does not occur in training


def sequences(sentences):
    return Sequences(np.concatenate(sentences).astype(np.uint16), np.cumsum([0, *map(len, sentences)]))


def probability(pairs, first, second):
    """p(second | first) of a list of pairs, counted one by one."""
    tokens, after = [w for _, w in pairs], [w for v, w in pairs if v == first]
    unigram = (tokens.count(second) + len(set(tokens)) / VOCABULARY) / (len(tokens) + len(set(tokens)))
    return (after.count(second) + len(set(after)) * unigram) / (len(after) + len(set(after))) if after else unigram


@pytest.mark.parametrize("predicted", [range(VOCABULARY), range(2, VOCABULARY)], ids=["all", "ordinary"])
def test_masked_places(sentences, predicted, monkeypatch):
    """Counted token by token, within sentences only; neighbours may be tokens that are never predicted."""
    monkeypatch.setattr(ngram, "AT_ONCE", 3)
    train, held_out = sentences
    allowed = np.isin(np.arange(VOCABULARY), predicted)
    found = masked_losses(sequences(train), sequences(held_out), VOCABULARY, allowed)
    forward = [pair for one in train for pair in itertools.pairwise(one) if pair[1] in predicted]
    backward = [pair for one in train for pair in itertools.pairwise(one[::-1]) if pair[1] in predicted]
    losses = {"left": [], "right": [], "both": []}
    for one in held_out:
        for before, target, after in zip(one, one[1:], one[2:], strict=False):
            if target not in predicted:
                continue
            left = [probability(forward, before, w) for w in range(VOCABULARY)]
            right = [probability(backward, after, w) for w in range(VOCABULARY)]
            both = [p * q for p, q in zip(left, right, strict=True)]
            for name, p in (("left", left), ("right", right), ("both", [each / sum(both) for each in both])):
                losses[name].append(-math.log(p[target]))
    assert len(losses["left"]) == sum(len(one) - 2 for one in held_out) > 10
    assert found == {name: pytest.approx(np.mean(values), rel=1e-12) for name, values in losses.items()}
    if len(predicted) == VOCABULARY:
        assert masked_losses(sequences(train), sequences(held_out), VOCABULARY) == found


def test_places_are_spread_evenly(sentences):
    train, held_out = map(sequences, sentences)
    several = [one for one in sentences[1] if len(one) > 2]
    alone = masked_losses(train, sequences(several[:1]), VOCABULARY, most=1)
    assert masked_losses(train, held_out, VOCABULARY, most=1) == alone


def test_held_out_text_without_a_token_to_predict_is_refused():
    sentences = sequences([[1, 2, 3], [2, 3]])
    with pytest.raises(ValueError, match="held_out: no token between two others"):
        masked_losses(sentences, sequences([[1, 2], [3]]), VOCABULARY)
    blocks = np.array([[1]])
    with pytest.raises(ValueError, match=r"held_out: expected blocks of at least two tokens, got an array of shape \(1, 1\)"):
        bigram_loss(blocks, blocks, VOCABULARY)
