"""Holm's adjustment by hand."""

import pytest

from tiejax.statistics.holm import holm, holm_factors


def test_holm_by_hand():
    # Ascending: .005 x 4, .01 x 3, .03 x 2, .04 x 1, made monotone.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_factors([0.01, 0.04, 0.03, 0.005]) == [3, 1, 2, 4]


def test_holm_is_cut_at_1_and_keeps_the_order_of_equal_values():
    assert holm([0.6, 0.6]) == [1.0, 1.0]
    assert holm_factors([0.2, 0.2, 0.1]) == [2, 1, 3]
    assert holm([]) == []
