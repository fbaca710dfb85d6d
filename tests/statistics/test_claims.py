"""Verdicts of claims by sign and adjusted p, and claims with non-finite values."""

import numpy as np
import pytest

from tiejax.statistics.claims import Claim, assess


def claim(differences, sign):
    return Claim("x", "statement", "statistic", np.asarray(differences, float), sign)


def test_verdicts():
    up = np.linspace(0.1, 1, 12)
    noise = np.array([-1, 1.1, -1.2, 1.3, -1.4, 1.5, -1.6, 1.7])
    rows = assess([claim(up, 1), claim(up, -1), claim(noise, 1), claim(up[:4], 1)])
    assert [row["verdict"] for row in rows] == ["supported", "contradicted", "undecided", "undecided"]
    # Holm over the three rows that have a p: the smallest is multiplied by 3.
    assert rows[0]["p_adjusted"] == pytest.approx(3 * rows[0]["p"])
    assert rows[3]["p"] is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_leave_a_claim_undecided_and_do_not_affect_others(bad):
    up = np.linspace(0.1, 1, 12)
    rows = assess([claim(up, 1), claim([*up[:-1], bad], 1)])
    assert (rows[1]["p"], rows[1]["estimate"], rows[1]["verdict"]) == (None, None, "undecided")
    assert rows[0]["p_adjusted"] == rows[0]["p"] < 0.01
