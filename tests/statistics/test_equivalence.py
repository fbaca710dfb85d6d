"""Equivalence within a margin: exact p of small samples, and verdicts."""

import numpy as np
import pytest

from tiejax.statistics.claims import Claim, assess
from tiejax.statistics.equivalence import equivalence_test

N = 10
SMALLEST = 2 / 2**N  # two-sided p of N equal signs


def around(centre):
    return centre + np.linspace(-0.002, 0.0025, N)


@pytest.mark.parametrize(
    ("centre", "p", "within"),
    [
        (0.0, SMALLEST, True),
        (0.006, SMALLEST, True),
        (0.02, SMALLEST, False),
        (-0.02, SMALLEST, False),
    ],
)
def test_p_is_exact_if_all_differences_agree(centre, p, within):
    """All differences lie within the margin of 0.01, or all beyond it on one side."""
    found = equivalence_test(around(centre), 0.01)
    assert found.p == pytest.approx(p)
    assert found.within == within


def test_differences_on_the_margin_are_undecided():
    found = equivalence_test(around(0.01), 0.01)
    assert found.p > 0.2


def test_too_few_or_equal_differences_are_undecided():
    assert equivalence_test(around(0.0)[:5], 0.01).p is None
    assert equivalence_test(np.zeros(N), 0.01).p is None
    assert equivalence_test(np.array([*around(0.0), np.nan]), 0.01).p is None


def test_verdicts_of_claims_of_no_difference():
    claims = [
        Claim("same/a", "a", "d", around(0.0), 0, margin=0.01),
        Claim("same/b", "b", "d", around(0.03), 0, margin=0.01),
        Claim("same/c", "c", "d", around(0.01), 0, margin=0.01),
        Claim("more/d", "d", "d", around(0.03), 1),
    ]
    rows = assess(claims)
    assert [row["verdict"] for row in rows] == ["supported", "contradicted", "undecided", "supported"]
    assert rows[0]["margin"] == 0.01
    assert "margin" not in rows[3]
    # The estimate is that of the difference, and Holm adjusts over all rows.
    assert rows[1]["estimate"] == pytest.approx(0.03025)
    assert rows[0]["p_adjusted"] == pytest.approx(4 * SMALLEST)
