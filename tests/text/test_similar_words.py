"""Words are compared by the tokens next to them."""

import numpy as np
import pytest

from tiejax.text.similar_words import most_similar, neighbours, similarity

TEXT = np.array([0, 1, 5, 0, 2, 5, 0, 1, 6, 3, 4, 3], np.uint16)


def test_neighbours_are_counted_on_both_sides():
    before, after = neighbours(TEXT, np.array([1, 2, 4]), 7)
    assert before.tolist() == [[2, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0]]
    assert after.tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0]]


def test_similarity_is_bhattacharyyas_coefficient():
    """Of (1/2, 1/2) and (1, 0) it is sqrt(1/2), of distributions on different tokens 0."""
    found = similarity(np.array([[1, 1, 0], [4, 0, 0], [0, 0, 2], [0, 0, 0]]))
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found, [[1, half, 0, 0], [half, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], atol=1e-12)


def test_words_that_replace_each_other_are_most_similar():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 20, 50_000)
    ids[1::2] = 20 + (ids[::2] // 2) * 2 + rng.integers(0, 2, 25_000)  # 20 and 21 follow 0 and 1, 22 and 23 follow 2 and 3, ...
    pairs = most_similar(ids, np.arange(20, 40), 40, 10)
    assert sorted(map(tuple, pairs.tolist())) == [(word, word + 1) for word in range(20, 40, 2)]


@pytest.mark.parametrize("number", [3, 500])
def test_there_are_as_many_pairs_as_asked_for(number):
    pairs = most_similar(np.arange(1000) % 30, np.arange(10), 30, number)
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs) == min(number, 45)
