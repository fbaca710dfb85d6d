"""Word similarity by hand: three vectors in a plane."""

import numpy as np
import pytest

from tiejax.geometry.word_similarity import WordPairs, similarity_correlation, word_vectors

TABLE = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])


def test_the_vector_of_a_word_is_the_mean_of_its_tokens():
    np.testing.assert_array_equal(word_vectors(TABLE, [[0], [0, 1], [1, 2]]), [[1, 0], [0.5, 0.5], [1, 1.5]])


@pytest.mark.parametrize(("judgement", "expected"), [([1.0, 2.0, 3.0], 1.0), ([3.0, 2.0, 1.0], -1.0), ([1.0, 3.0, 2.0], 0.5)])
def test_ranks_of_dot_products_are_compared(judgement, expected):
    """Products 0 (0 . 1), .5 (0 . 01) and 2 (0 . 2) rise with the first judgement."""
    pairs = WordPairs([[0], [0], [0]], [[1], [0, 1], [2]], np.array(judgement))
    assert similarity_correlation(TABLE, pairs) == pytest.approx(expected)
