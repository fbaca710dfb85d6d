"""Paired tests over seeds, and Holm's adjustment."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

SMALLEST_SAMPLE = 6
RESAMPLES = 9_999


@dataclasses.dataclass(frozen=True)
class Paired:
    """Result of a paired comparison; fields that are not defined are None.

    Attributes:
        estimate: Median difference (mean difference for yes-or-no outcomes).
        interval: 95 % interval of the estimate.
        p: Two-sided p-value.
        effect_size: Matched-pairs rank-biserial correlation, in [-1, 1].
        n: Number of pairs.
    """

    estimate: float | None
    interval: tuple[float, float] | None
    p: float | None
    effect_size: float | None
    n: int


def paired_test(differences: np.ndarray, binary: bool = False) -> Paired:
    """Compare paired values by their differences d, one per seed.

    The estimate is the median of d, with its 95 % BCa bootstrap interval (9,999 resamples, fixed seed). p is from the two-sided
    Wilcoxon signed-rank test, exact for n <= 50 without zeros and ties. The effect size is the matched-pairs rank-biserial
    correlation (R+ - R-) / (R+ + R-), where R+ and R- are the sums of the ranks of |d| by the sign of d.

    Args:
        differences: d, one per seed. If any is not finite, all fields but `n` are None.
        binary: Whether d, in {-1, 0, 1}, are differences between yes-or-no outcomes. The estimate is then their mean, and p is
            McNemar's exact (binomial) p.

    Returns:
        The comparison. Interval and p are None with fewer than 6 seeds, when p cannot be below .05, or without variance.
    """
    d = np.asarray(differences, dtype=float)
    n = len(d)
    if n == 0 or not np.isfinite(d).all():
        return Paired(None, None, None, None, n)
    average: Callable[..., Any] = np.mean if binary else np.median
    estimate = float(average(d))
    effect = rank_biserial(d)
    if n < SMALLEST_SAMPLE or np.ptp(d) == 0:
        return Paired(estimate, None, None, effect, n)
    if binary:
        gains, losses = int((d > 0).sum()), int((d < 0).sum())
        p = float(stats.binomtest(gains, gains + losses, 0.5).pvalue)
    else:
        p = float(stats.wilcoxon(d).pvalue)
    return Paired(estimate, _bca(d, average), p, effect, n)


def rank_biserial(differences: np.ndarray) -> float | None:
    """Return the matched-pairs rank-biserial correlation, in [-1, 1]; None if every difference is 0."""
    d = differences[differences != 0]
    if len(d) == 0:
        return None
    ranks = stats.rankdata(np.abs(d))
    return float((ranks[d > 0].sum() - ranks[d < 0].sum()) / ranks.sum())


def _bca(d: np.ndarray, average: Callable[..., Any]) -> tuple[float, float] | None:
    with warnings.catch_warnings():
        # With many equal values the acceleration may be undefined; there is then no BCa interval.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        result = stats.bootstrap(
            (d,), average, method="BCa", n_resamples=RESAMPLES, rng=np.random.default_rng(0), vectorized=True
        )
    low, high = (float(bound) for bound in result.confidence_interval)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for multiple tests by Holm's method: p_(i) -> max_{j <= i} min(1, (m - j + 1) p_(j)) in ascending order.

    Args:
        p_values: The p-values of m tests; None for tests without one, which are not counted.

    Returns:
        The adjusted p-values, in the order of `p_values`; None stays None.
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = largest
    return adjusted
