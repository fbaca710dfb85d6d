"""Classification of two scores by published marks, case by case."""

import pytest

from tiejax.checkpoints.diagnose.relation import standing


@pytest.mark.parametrize(
    ("least_squares", "overlap", "chance", "expected"),
    [
        (0.8, 0.8, 0.1, "near"),
        (0.719, 0.733, 0.1, "near"),
        (0.8, 0.6, 0.1, "between"),
        (0.6, 0.6, 0.1, "between"),
        (0.8, 0.1, 0.1, "between"),
        (0.3, 0.1, 0.1, "apart"),
        (0.9, 0.1, 0.6, "apart"),  # least squares would map any two tables
        (0.9, 0.8, 0.6, "near"),
        (None, 0.8, 0.1, "near"),
    ],
)
def test_standing(least_squares, overlap, chance, expected):
    assert standing(least_squares, overlap, chance) == expected
