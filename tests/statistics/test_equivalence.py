"""Equivalence within a margin: exact p of small samples, and the verdicts that follow."""

import numpy as np
import pytest

from tiejax.statistics.claims import Claim, assess
from tiejax.statistics.equivalence import equivalence_test

N = 10
SMALLEST = 2 / 2**N  # of n signs that all agree, two-sided


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
def test_p_is_exact_where_all_differences_agree(centre, p, within):
    """Every difference within the margin of .01, or every one beyond it on one side."""
    found = equivalence_test(around(centre), 0.01)
    assert found.p == pytest.approx(p)
    assert found.within == within


def test_on_the_margin_nothing_is_decided():
    found = equivalence_test(around(0.01), 0.01)
    assert found.p > 0.2


def test_too_few_or_equal_differences_decide_nothing():
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
    # The estimate is that of the difference, and Holm counts all rows.
    assert rows[1]["estimate"] == pytest.approx(0.03025)
    assert rows[0]["p_adjusted"] == pytest.approx(4 * SMALLEST)
