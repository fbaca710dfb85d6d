"""Tests of the mean of paired differences: sign flips and, where nothing makes them symmetric, bootstrap-t as well.

Sign flips are exact if the differences are symmetric around their mean, as those of two arms are if both have the same
distribution. If their skewness says otherwise, or if they are of one arm, a bootstrap-t test, which assumes no symmetry, must
reject as well: the larger p counts, and the interval holds both intervals. A mean that a few seeds determine is beyond either
test, since another sample may have none of them: of very skewed differences, nine of ten must also lie on the side of the
mean (for a margin, on its side), or p is 1. Simulated error rates: experiments/error_rates.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from tiejax.statistics import bootstrap_t
from tiejax.statistics.bootstrap_t import BootstrapT
from tiejax.statistics.sign_flips import SignFlips, is_constant, subset_means

SKEWED, VERY_SKEWED = 0.5, 1.5  # |skewness| beyond which bootstrap-t is used, and beyond which most seeds must agree
MOST_SEEDS = 0.9


class MeanTest(NamedTuple):
    """The tests of one mean, of which all must reject.

    tests: sign flips, followed by bootstrap-t if it is used. differences: of which the test is. skewness: that of them.
    by_most: whether most seeds must lie on the side of the mean, or of the margin, if the differences are very skewed.
    """

    tests: tuple[SignFlips | BootstrapT, ...]
    differences: Float[np.ndarray, " seeds"]
    skewness: float
    by_most: bool = True

    def two_sided(self, mean: float = 0.0) -> float:
        """Return the p-value of the null hypothesis that the mean equals `mean`."""
        side = self.differences > mean if self.differences.mean() > mean else self.differences < mean
        return self._largest([test.two_sided(mean) for test in self.tests], side)

    def above(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at most `mean`."""
        return self._largest([test.above(mean) for test in self.tests], self.differences > mean)

    def below(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at least `mean`."""
        return self._largest([test.below(mean) for test in self.tests], self.differences < mean)

    def _largest(self, p_values: Sequence[float], on_side: Bool[np.ndarray, " seeds"]) -> float:
        few = self.by_most and abs(self.skewness) > VERY_SKEWED and on_side.mean() < MOST_SEEDS
        return 1.0 if few else max(p_values)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the smallest interval with the means that a two-sided test at level `alpha` does not reject."""
        return _around([test.interval(alpha) for test in self.tests])

    def one_sided_limits(self, alpha: float) -> tuple[float, float]:
        """Return the outermost of the lower and of the upper limits of the one-sided tests, each at level `alpha`."""
        return _around([test.one_sided_limits(alpha) for test in self.tests])


def _around(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def mean_tests(differences: Sequence[np.ndarray], one_arm: Sequence[bool]) -> list[MeanTest]:
    """Return the tests of the mean of each claim.

    differences: for each claim, a finite difference per seed; claims may have different numbers of seeds, at least one.
    one_arm: for each claim, whether the differences are between quantities of one arm.
    """
    flips = [SignFlips(d, means) for d, means in zip(differences, subset_means(differences), strict=True)]
    found = list(map(skewness, differences))
    resampled = [
        place for place, d in enumerate(differences) if (abs(found[place]) > SKEWED or one_arm[place]) and not is_constant(d)
    ]
    statistics = bootstrap_t.statistics([differences[place] for place in resampled])
    bootstraps = {place: (BootstrapT(differences[place], t),) for place, t in zip(resampled, statistics, strict=True)}
    return [MeanTest((test, *bootstraps.get(place, ())), differences[place], found[place]) for place, test in enumerate(flips)]


def skewness(differences: Float[np.ndarray, " seeds"]) -> float:
    """Return mean((d - mean d)^3) / (mean (d - mean d)^2)^1.5; 0 if all differences are equal."""
    if is_constant(differences):
        return 0.0
    centred = (differences - differences.mean()) / np.ptp(differences)
    return float(np.mean(centred**3) / np.mean(centred**2) ** 1.5)
