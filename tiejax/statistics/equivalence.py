"""Equivalence of paired values: whether their differences are within a margin that was stated before."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from tiejax.statistics.paired_test import SMALLEST_SAMPLE


class Equivalence(NamedTuple):
    """p: two-sided, None where nothing could be decided. within: whether it speaks for equivalence, or against it."""

    p: float | None
    within: bool


def equivalence_test(differences: np.ndarray, margin: float) -> Equivalence:
    """Test whether the median difference lies between -margin and margin, or outside; one difference a pair.

    For: the larger p of the two one-sided Wilcoxon signed-rank tests of d > -margin and d < margin. Against: the smaller p of
    those of d < -margin and d > margin. p is twice the smaller of the two, as that of a two-sided test.
    Source: D. J. Schuirmann, J. Pharmacokin. Biopharm. 15 (1987) 657-680, with ranks in place of t.
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < SMALLEST_SAMPLE or not np.isfinite(d).all() or np.ptp(d) == 0:
        return Equivalence(None, False)
    inside = max(_one_sided(d + margin), _one_sided(margin - d))
    outside = min(_one_sided(d - margin), _one_sided(-margin - d))
    return Equivalence(min(1.0, 2 * min(inside, outside)), inside < outside)


def _one_sided(d: np.ndarray) -> float:
    """Return p of the hypothesis that the median is not above 0."""
    return float(stats.wilcoxon(d, alternative="greater").pvalue)
