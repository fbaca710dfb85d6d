"""A test that paired values are equivalent within a margin stated in advance."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from tiejax.statistics.paired_test import SMALLEST_SAMPLE


class Equivalence(NamedTuple):
    """Result of an equivalence test.

    Attributes:
        p: Two-sided p-value; None if the test cannot decide.
        within: Whether the evidence is for equivalence rather than against it.
    """

    p: float | None
    within: bool


def equivalence_test(differences: np.ndarray, margin: float) -> Equivalence:
    """Test whether the median of paired differences lies between -margin and margin, or outside.

    The p-value for equivalence is the larger of those of one-sided Wilcoxon signed-rank tests of d > -margin and d < margin;
    the p-value against it is the smaller of those of d < -margin and d > margin. The returned p is twice the smaller of the
    two, as for a two-sided test.

    Args:
        differences: One difference d per pair.
        margin: The margin, in the unit of the differences.

    Returns:
        The p-value, and whether the evidence is for equivalence. With fewer than 6 differences, without variance, or with a
        value that is not finite, p is None.

    Source: D. J. Schuirmann, J. Pharmacokin. Biopharm. 15 (1987) 657-680, with signed-rank tests in place of t-tests.
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < SMALLEST_SAMPLE or not np.isfinite(d).all() or np.ptp(d) == 0:
        return Equivalence(None, False)
    inside = max(_one_sided(d + margin), _one_sided(margin - d))
    outside = min(_one_sided(d - margin), _one_sided(-margin - d))
    return Equivalence(min(1.0, 2 * min(inside, outside)), inside < outside)


def _one_sided(d: np.ndarray) -> float:
    """Return the p-value for the null hypothesis that the median is not above 0."""
    return float(stats.wilcoxon(d, alternative="greater").pvalue)
