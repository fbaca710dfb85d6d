"""Retrieval by hand: three sentences in a plane, a translation that is a shift, and one that the shift must be fitted for."""

import numpy as np
import pytest

from tiejax.geometry.retrieval import nearest, translation_accuracy

SOURCE = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])


SHIFTED = SOURCE + np.array([100.0, -50.0])


def test_nearest_is_by_euclidean_distance():
    candidates = np.array([[10.0, 10.0], [1.0, 0.0], [0.0, 5.0]])
    # Dot products would find the first for all of them.
    assert nearest(np.array([[1.0, 1.0], [0.0, 4.0], [9.0, 9.0]]), candidates).tolist() == [1, 2, 0]


def test_a_shift_between_languages_is_removed():
    assert translation_accuracy(SOURCE, SHIFTED) == 1.0
    assert nearest(SOURCE, SHIFTED).tolist() == [2, 2, 2]


def test_two_of_three_are_found():
    """The targets of the first two are exchanged: with the mean difference 0, each finds the other's."""
    target = SOURCE[[1, 0, 2]]
    np.testing.assert_allclose(translation_accuracy(SOURCE, target), 1 / 3)


def test_a_difference_fitted_elsewhere_may_not_fit():
    """Even and odd pairs are shifted in opposite directions: all together they cancel, each half misleads the other."""
    source = np.array([[10.0, 0.0], [4.0, 0.0], [110.0, 0.0], [104.0, 0.0]])
    target = source + np.array([[4.0, 0.0], [-4.0, 0.0]] * 2)
    assert translation_accuracy(source, target, "all") == 1.0
    # By the other half, 10 - 4 and 4 + 4 among 14 and 0.
    assert translation_accuracy(source, target, "held_out") == 0.0


def test_retrieval_refuses_what_it_cannot_fit():
    assert np.isnan(translation_accuracy(SOURCE, SHIFTED * np.nan))
    for source, fitted in ((SOURCE[:1], "held_out"), (SOURCE, "heldout"), (SOURCE[:0], "all")):
        # Where signatures are checked, a TypeError.
        with pytest.raises((ValueError, TypeError), match=r"fitted(: expected all|')"):
            translation_accuracy(source, source, fitted)
