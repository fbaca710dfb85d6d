"""Scores by hand."""

import numpy as np

from tiejax.transfer.scores import accuracy, macro_f1

# Label 0 occurs 4 times (3 correct), label 1 twice (both correct), label 2 never, but was predicted once.
CONFUSION = np.array([[3, 0, 1], [0, 2, 0], [0, 0, 0]])


def test_scores_by_hand():
    assert accuracy(CONFUSION) == 5 / 6
    # F1 of 0: precision 1, recall 3/4; of 1: both 1. Label 2 does not occur.
    np.testing.assert_allclose(macro_f1(CONFUSION), (2 * 0.75 / 1.75 + 1) / 2)


def test_axes_of_members():
    members = np.stack([[CONFUSION, CONFUSION.T]] * 3)
    assert accuracy(members).shape == (3, 2)
    np.testing.assert_allclose(macro_f1(members)[0, 0], macro_f1(CONFUSION))
