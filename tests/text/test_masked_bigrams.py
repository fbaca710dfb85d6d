"""Tests of the sentences that bigram models of masked tokens are counted on, and of their twins."""

import numpy as np
import pytest

from tiejax.text import masked_bigrams
from tiejax.text.languages import Languages
from tiejax.text.masked_bigrams import losses_of_bigrams, planted, sentences_of
from tiejax.text.packing import TextFeed
from tiejax.text.sequences import Sequences
from tiejax.text.twins import Twins, cipher

LENGTHS = np.random.default_rng(0).integers(3, 9, 57)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
TEXT = Sequences(np.repeat(np.arange(1, 58), LENGTHS).astype(np.uint16), OFFSETS)  # every token is the number of its sentence
LANGUAGES = Languages(("large", "small"), np.repeat([0, 1], [50, 7]), 0.0)  # an epoch has about 28 sentences of each


@pytest.mark.parametrize("feed", [{}, {"packed": False}, {"packed": False, "epochs_apart": True}, {"languages": LANGUAGES}])
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_sentences_are_those_that_the_steps_read(feed, steps):
    """The numbers of the sentences equal those in the rows of the steps; 40 steps are many epochs, and read all of them."""
    source = TextFeed(*TEXT, 16, 0, rows=10, window=1, **feed)
    windows = source.open([(5, 0)], range(1), 1, 0)
    read = {int(token) for _ in range(steps) for token in np.unique(next(windows).tokens)} - {0}
    found = sentences_of(source.stream(5), steps * 10)
    assert set(found.ids.tolist()) == read
    assert (len(read) < 57) == (steps < 40)
    np.testing.assert_array_equal(found.ids, np.repeat(sorted(read), LENGTHS[np.array(sorted(read)) - 1]))
    np.testing.assert_array_equal(np.diff(found.offsets), LENGTHS[np.array(sorted(read)) - 1])


def test_later_epochs_of_sampled_languages_add_sentences():
    source = TextFeed(*TEXT, 16, 0, rows=10, languages=LANGUAGES)
    epoch = len(source.stream(5).packing(0).starts) - 1
    first, second = (set(sentences_of(source.stream(5), number * epoch).ids.tolist()) for number in (1, 2))
    both = set(source.stream(5).packing(0).order.tolist()) | set(source.stream(5).packing(1).order.tolist())
    assert first < second == {number + 1 for number in both}


def test_long_texts_are_counted_from_their_beginning(monkeypatch):
    monkeypatch.setattr(masked_bigrams, "MOST_TOKENS", 50)
    found = sentences_of(TextFeed(*TEXT, 16, 0, rows=10).stream(5), 10_000)
    assert found.offsets[-1] == len(found.ids) <= 50 < len(found.ids) + LENGTHS[len(found.offsets) - 1]


def test_twins_are_planted_with_their_probabilities():
    twins = Twins(6, ("a", "b"), (2, 4), (0.5, 0.1))
    before = Sequences(np.tile(np.arange(6), 20_000).astype(np.uint16), np.array([0, 120_000]))
    after = planted(before, twins, np.random.default_rng(0)).ids
    share = [np.mean(after[before.ids == token] != token) for token in range(6)]
    assert share == pytest.approx([0, 0, 0.5, 0, 0.1, 0], abs=0.02)
    original = np.where(after >= 6, np.array([2, 4])[np.maximum(after, 6) - 6], after)
    np.testing.assert_array_equal(original, before.ids)


def test_sentences_of_a_cipher_are_in_one_language():
    """Tokens 0 and 1 are special; half of the sentences are written in twins, each of them whole."""
    before = Sequences(np.tile([0, 2, 3, 2, 1], 4000).astype(np.uint16), 5 * np.arange(4001))
    after = planted(before, cipher("abcd", (0, 1)), np.random.default_rng(0), whole_sentences=True).ids.reshape(4000, 5)
    in_cipher = after[:, 1] != 2
    assert np.mean(in_cipher) == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(after[in_cipher], np.tile([0, 4, 5, 4, 1], (in_cipher.sum(), 1)))
    np.testing.assert_array_equal(after[~in_cipher], np.tile([0, 2, 3, 2, 1], ((~in_cipher).sum(), 1)))


def test_losses_in_a_cipher_are_those_of_its_language():
    """A text wholly in the cipher is the same text with other ids; bigrams must not pay for the language of each token."""
    rng = np.random.default_rng(1)  # another seed than that of the twins
    read, held_out = (Sequences(rng.integers(2, 6, 4000).astype(np.uint16), 8 * np.arange(501)) for _ in range(2))

    def losses(probability, whole_sentences=True):
        return losses_of_bigrams(read, held_out, cipher("abcdef", (0, 1), probability), (0, 1), whole_sentences)

    assert losses(1.0) == pytest.approx(losses(0.0), rel=1e-12)
    # Uniform over 4 tokens if the language is known, over 8 otherwise.
    assert losses(0.5) == pytest.approx(dict.fromkeys(("left", "right", "both"), np.log(4)), abs=0.03)
    assert losses(0.5, whole_sentences=False) == pytest.approx(dict.fromkeys(("left", "right", "both"), np.log(8)), abs=0.05)
