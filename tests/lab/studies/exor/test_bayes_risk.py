"""The Bayes risk of EXor against the table of the specification and against enumeration."""

import collections
import math

import numpy as np
import pytest
from exor_visits import every_visit, variant
from hypothesis import given, settings
from hypothesis import strategies as st

from tiejax.lab.studies.exor.task import VARIANTS, EXor, bayes_risk, split, strings

# The specification's table, which has four digits; half, which is not in it: the bit is known, its spelling is a coin, ln 2.
HALF = (0.5, 0.6931)
TABLE = {"main": (0.7016, 0.5077), "dh": (0.7520, 0.3438), "no-dh": (0.9504, 0.1613), "half": HALF}
BY_SPLIT = {
    "main": {"train": (0.7015, 0.5077), "validation": (0.7000, 0.5091)},
    "dh": {"train": (0.7519, 0.3440), "validation": (0.7500, 0.3466)},
    "no-dh": {"train": (0.9504, 0.1613), "validation": (0.9500, 0.1625)},
    "half": {"train": HALF, "validation": HALF},
}


def bayes_by_enumeration(task, rows):
    joint = collections.defaultdict(lambda: collections.defaultdict(float))
    for context, _, target, weight in every_visit(task, rows):
        joint[context][target] += weight
    accuracy = sum(max(targets.values()) for targets in joint.values())
    entropy = -sum(p * math.log(p / sum(targets.values())) for targets in joint.values() for p in targets.values())
    return accuracy, entropy


@pytest.mark.parametrize("name", VARIANTS)
def test_bayes_risk_matches_the_specification(name):
    task = variant(name)
    assert tuple(round(value, 4) for value in bayes_risk(task, strings(7))) == TABLE[name]
    for part, expected in BY_SPLIT[name].items():
        assert tuple(round(value, 4) for value in bayes_risk(task, split(7)[part])) == expected


@given(
    st.integers(2, 4), st.lists(st.integers(0, 5), min_size=1, max_size=3), st.lists(st.integers(0, 5), min_size=1, max_size=3)
)
@settings(max_examples=25, deadline=None)
def test_bayes_risk_equals_enumeration(bits, zero, one):
    zero, one = [[1] if sum(counts) == 0 else counts for counts in (zero, one)]
    task = EXor(bits, tuple(c / sum(zero) for c in zero), tuple(c / sum(one) for c in one))
    expected = bayes_by_enumeration(task, strings(bits))
    np.testing.assert_allclose(bayes_risk(task, strings(bits)), expected, atol=1e-12)
