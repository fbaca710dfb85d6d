"""Claims as tests: a statement, the paired differences that speak for or against it, and a verdict."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiejax.statistics.equivalence import equivalence_test
from tiejax.statistics.paired_test import Paired, holm, paired_test

SIGNIFICANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim that `differences`, one a seed, are positive (sign 1) or negative (sign -1).

    id: `claim/part`. statement: what is claimed, in words. statistic: what the differences are.
    binary: differences of yes-or-no outcomes. margin: the claim is instead that they lie between -margin and margin (sign 0).
    """

    id: str
    statement: str
    statistic: str
    differences: np.ndarray
    sign: int
    binary: bool = False
    margin: float | None = None


def assess(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Test every claim and adjust p over all of them (Holm).

    verdict: `supported` (adjusted p < .05, sign as stated), `contradicted` (adjusted p < .05, the other sign), `undecided`.
    A claim with a margin is tested by `equivalence_test`; its estimate, interval and effect size are those of the difference.
    """
    tested = [_tested(claim) for claim in claims]
    adjusted = holm([test.p for test, _ in tested])
    rows = []
    for claim, (test, speaks_for), p_adjusted in zip(claims, tested, adjusted, strict=True):
        verdict = "undecided"
        if p_adjusted is not None and p_adjusted < SIGNIFICANCE and speaks_for is not None:
            verdict = "supported" if speaks_for else "contradicted"
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
                **({} if claim.margin is None else {"margin": claim.margin}),
            }
        )
    return rows


def _tested(claim: Claim) -> tuple[Paired, bool | None]:
    """Return a claim's test, and whether it speaks for the claim; None where it speaks neither way."""
    test = paired_test(claim.differences, claim.binary)
    if claim.margin is None:
        return test, test.effect_size * claim.sign > 0 if test.effect_size else None
    equivalence = equivalence_test(claim.differences, claim.margin)
    return dataclasses.replace(test, p=equivalence.p), equivalence.within
