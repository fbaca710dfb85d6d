"""Word similarity by hand: three vectors in a plane."""

import numpy as np
import pytest

from tiejax.geometry.word_similarity import WordPairs, bootstrap_interval, similarity_correlation, word_vectors

TABLE = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])


def test_the_vector_of_a_word_is_the_mean_of_its_tokens():
    np.testing.assert_array_equal(word_vectors(TABLE, [[0], [0, 1], [1, 2]]), [[1, 0], [0.5, 0.5], [1, 1.5]])


@pytest.mark.parametrize(("judgement", "expected"), [([1.0, 2.0, 3.0], 1.0), ([3.0, 2.0, 1.0], -1.0), ([1.0, 3.0, 2.0], 0.5)])
def test_ranks_of_dot_products_are_compared(judgement, expected):
    """Products 0 (0 . 1), .5 (0 . 01) and 2 (0 . 2) rise with the first judgement."""
    pairs = WordPairs([[0], [0], [0]], [[1], [0, 1], [2]], np.array(judgement))
    assert similarity_correlation(TABLE, pairs) == pytest.approx(expected)


def test_the_interval_contains_the_correlation_and_narrows_with_pairs():
    rng = np.random.default_rng(0)
    table = rng.standard_normal((200, 8))

    def interval(number):
        first, second = rng.integers(0, 200, (2, number))
        products = np.sum(table[first] * table[second], axis=1)
        pairs = WordPairs(
            [[i] for i in first.tolist()], [[i] for i in second.tolist()], products + 2 * rng.standard_normal(number)
        )
        low, high = bootstrap_interval(table, pairs)
        assert low < similarity_correlation(table, pairs) < high
        return high - low

    assert interval(400) < interval(40)


def test_resamples_of_a_single_pair_are_left_out():
    """Of three pairs, one resample in nine has no spread; warnings are errors."""
    pairs = WordPairs([[0], [0], [0]], [[1], [0, 1], [2]], np.array([1.0, 2.0, 3.0]))
    assert bootstrap_interval(TABLE, pairs) == (1.0, 1.0)
