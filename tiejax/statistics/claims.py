"""Claims about paired differences, tested together, each with a verdict."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiejax.statistics.equivalence import equivalence_test
from tiejax.statistics.paired_test import Paired, holm, paired_test

SIGNIFICANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim that `differences`, one per seed, are positive (sign 1) or negative (sign -1).

    Attributes:
        id: `claim/part`.
        statement: The claim as a sentence.
        statistic: The meaning of the differences.
        differences: One difference per seed.
        sign: The claimed sign; 0 for a claim with a margin.
        binary: Whether the differences are between yes-or-no outcomes.
        margin: If set, the claim is that the median difference lies between -margin and margin.
    """

    id: str
    statement: str
    statistic: str
    differences: np.ndarray
    sign: int
    binary: bool = False
    margin: float | None = None


def assess(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Test every claim, adjust the p-values over all of them (Holm), and return a row with a verdict for each.

    The verdict is `supported` (adjusted p < .05, sign as claimed), `contradicted` (adjusted p < .05, opposite sign) or
    `undecided`. A claim with a margin is tested by `equivalence_test`; its estimate, interval and effect size are those of the
    difference.

    Args:
        claims: The claims of one study.

    Returns:
        A dict per claim with `id`, `statement`, `statistic`, `estimate`, `interval` (95 %), `p`, `p_adjusted`, `effect_size`,
        `n`, `verdict`, and `margin` if the claim has one.
    """
    tested = [_tested(claim) for claim in claims]
    adjusted = holm([test.p for test, _ in tested])
    rows = []
    for claim, (test, agrees), p_adjusted in zip(claims, tested, adjusted, strict=True):
        verdict = "undecided"
        if p_adjusted is not None and p_adjusted < SIGNIFICANCE and agrees is not None:
            verdict = "supported" if agrees else "contradicted"
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
    """Return the test of a claim, and whether it agrees with the claim, or None if it points in neither direction."""
    test = paired_test(claim.differences, claim.binary)
    if claim.margin is None:
        return test, test.effect_size * claim.sign > 0 if test.effect_size else None
    equivalence = equivalence_test(claim.differences, claim.margin)
    return dataclasses.replace(test, p=equivalence.p), equivalence.within
