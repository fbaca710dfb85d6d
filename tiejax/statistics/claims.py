"""Claims as tests: a statement, the paired differences that speak for or against it, and a verdict."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiejax.statistics.paired_test import holm, paired_test

SIGNIFICANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim that `differences`, one a seed, are positive (sign 1) or negative (sign -1).

    id: `claim/part`. statement: what is claimed, in words. statistic: what the differences are.
    binary: differences of yes-or-no outcomes.
    """

    id: str
    statement: str
    statistic: str
    differences: np.ndarray
    sign: int
    binary: bool = False


def assess(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Test every claim and adjust p over all of them (Holm).

    verdict: `supported` (adjusted p < .05, sign as stated), `contradicted` (adjusted p < .05, the other sign), `undecided`.
    """
    tests = [paired_test(claim.differences, claim.binary) for claim in claims]
    adjusted = holm([test.p for test in tests])
    rows = []
    for claim, test, p_adjusted in zip(claims, tests, adjusted, strict=True):
        verdict = "undecided"
        if p_adjusted is not None and p_adjusted < SIGNIFICANCE and test.effect_size:
            verdict = "supported" if test.effect_size * claim.sign > 0 else "contradicted"
        rows.append(
            {
                "id": claim.id,
                "statement": claim.statement,
                "statistic": claim.statistic,
                "estimate": test.estimate,
                "interval": list(test.interval) if test.interval else None,
                "p": test.p,
                "p_adjusted": p_adjusted,
                "effect_size": test.effect_size,
                "n": test.n,
                "verdict": verdict,
            }
        )
    return rows
