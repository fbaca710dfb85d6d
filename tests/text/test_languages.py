"""Languages sampled by an exponent: numbers by hand, and what a stream then reads."""

import numpy as np
import pytest

from tiejax.text.languages import Languages
from tiejax.text.packing import Stream

OF_SENTENCE = np.array([0] * 81 + [1] * 16 + [2] * 3)


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (1.0, [81, 16, 3]),
        (0.5, [61, 27, 12]),  # 9, 4 and 1.73 of 14.73, of 100 sentences
        (0.0, [33, 33, 33]),
    ],
)
def test_languages_share_an_epoch_by_their_size_to_a_power(exponent, expected):
    assert Languages(("a", "b", "c"), OF_SENTENCE, exponent).numbers().tolist() == pytest.approx(expected, abs=1)


def test_a_language_is_thinned_or_repeated_evenly():
    languages = Languages(("a", "b", "c"), OF_SENTENCE, 0.0)
    rng = np.random.default_rng(0)
    read = languages.sample(rng.permutation(100), rng)
    times = np.bincount(read, minlength=100)
    assert [times[language == OF_SENTENCE].sum() for language in range(3)] == [33, 33, 33]
    assert set(times[OF_SENTENCE == 0]) == {0, 1}
    assert set(times[OF_SENTENCE == 1]) == {2, 3}
    assert set(times[OF_SENTENCE == 2]) == {11}
    # Shuffled: languages do not come one after the other.
    assert (np.diff(OF_SENTENCE[read]) != 0).sum() > 40


def test_a_stream_reads_languages_so():
    lengths = np.full(100, 4)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.repeat(OF_SENTENCE + 10, 4)
    stream = Stream(ids, offsets, 4, 0, 5, languages=Languages(("a", "b", "c"), OF_SENTENCE, 0.0))
    first, second = (stream.rows(99 * epoch, 99)[0][:, 0] - 10 for epoch in range(2))
    assert np.bincount(first).tolist() == np.bincount(second).tolist() == [33, 33, 33]
    assert first.tolist() != second.tolist()
