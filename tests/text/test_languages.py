"""Sampling of languages with an exponent: numbers by hand, and the rows of a stream."""

import numpy as np
import pytest

from tiejax.text.languages import Languages
from tiejax.text.packing import Stream

SENTENCE_LANGUAGE = np.array([0] * 81 + [1] * 16 + [2] * 3)


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (1.0, [81, 16, 3]),
        (0.5, [61, 27, 12]),  # 100 sentences in proportion 9 : 4 : 1.73
        (0.0, [33, 33, 33]),
    ],
)
def test_shares_of_the_languages(exponent, expected):
    assert Languages(("a", "b", "c"), SENTENCE_LANGUAGE, exponent).numbers().tolist() == pytest.approx(expected, abs=1)


def test_a_language_without_sentences_has_no_share():
    assert Languages(("a", "b"), np.zeros(10, int), 0.0).numbers().tolist() == [10, 0]


def test_sentences_of_a_language_are_sampled_evenly():
    languages = Languages(("a", "b", "c"), SENTENCE_LANGUAGE, 0.0)
    rng = np.random.default_rng(0)
    read = languages.sample(rng.permutation(100), rng)
    times = np.bincount(read, minlength=100)
    assert [times[language == SENTENCE_LANGUAGE].sum() for language in range(3)] == [33, 33, 33]
    assert set(times[SENTENCE_LANGUAGE == 0]) == {0, 1}
    assert set(times[SENTENCE_LANGUAGE == 1]) == {2, 3}
    assert set(times[SENTENCE_LANGUAGE == 2]) == {11}
    # Shuffled: not sorted by language.
    assert (np.diff(SENTENCE_LANGUAGE[read]) != 0).sum() > 40


def test_stream_with_languages():
    lengths = np.full(100, 4)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.repeat(SENTENCE_LANGUAGE + 10, 4)
    stream = Stream(ids, offsets, 4, 0, 5, languages=Languages(("a", "b", "c"), SENTENCE_LANGUAGE, 0.0))
    first, second = (stream.rows(99 * epoch, 99)[0][:, 0] - 10 for epoch in range(2))
    assert np.bincount(first).tolist() == np.bincount(second).tolist() == [33, 33, 33]
    assert first.tolist() != second.tolist()
