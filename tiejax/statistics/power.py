"""What more seeds would show: the smallest detectable difference, and the number of seeds that a margin needs."""

import bisect
import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import special  # scipy.stats takes half a second to import

from tiejax.statistics.sign_flips import MOST_ENUMERATED

POWER = 0.8
NEAR_FLOOR = 100  # up to this multiple of the smallest possible p, few flips decide, which the t distribution does not describe
AT_LEAST = 0.85  # simulated multiples of the deviation are .89 to 1.35 times those of the t distribution
MOST_SEEDS = 10**6  # the largest number that is reported as needed
STUDIES, BLOCKS = 400, 10  # simulated studies, and the blocks of them that are in memory one at a time


def smallest_detectable(deviation: float, n: int, alpha: float, sides: int, power: float = POWER) -> float:
    r"""Return the mean difference that `n` seeds show in four of five studies.

        (t_{1 - alpha / sides, n - 1} + t_{.8, n - 1}) s / sqrt(n)

    If alpha is near the smallest p that sign flips of n seeds can have, sides 2^(-n), the multiple of s is that with which
    four of five simulated studies of normal differences reject.

    deviation: s, the standard deviation of the differences over seeds. n: at least 2. alpha: level of the test. sides: 1 or 2.
    power: the share of studies, .8 above.
    """
    if n <= MOST_ENUMERATED and 1 <= alpha / (sides * 2.0**-n) * (1 + 1e-9) <= NEAR_FLOOR:
        return _simulated(n, alpha, sides, power) * deviation
    return _by_t(n, alpha, sides, power) * deviation


def _by_t(n: int, alpha: float, sides: int, power: float) -> float:
    return float(special.stdtrit(n - 1, [1 - alpha / sides, power]).sum()) / math.sqrt(n)


def _simulated(n: int, alpha: float, sides: int, power: float) -> float:
    """Return the mean of normal differences with deviation 1 that sign flips show in a share of studies, the power.

    A study without an effect whose lower limit is -x shows every mean above x, so that the mean is a quantile of x.
    """
    rejected = int(alpha / sides * 2.0**n * (1 + 1e-9))  # see `sign_flips.SignFlips`, whose limits these are
    return float(np.quantile(-_lowest_subset_means(n)[:, rejected], power))


@functools.cache
def _lowest_subset_means(n: int) -> Float[np.ndarray, "studies lowest"]:
    """Return the lowest means over subsets of the differences of simulated studies, ascending.

    The first is -inf, for the empty subset. A two-sided test takes the lower of the means over a subset and over the others:
    these are the means below that of all, each of them twice.
    """
    samples = np.random.default_rng(n).normal(size=(STUDIES, n))
    subsets = (np.arange(1, 2**n)[:, None] >> np.arange(n) & 1).astype(float)
    subsets /= subsets.sum(1, keepdims=True)
    kept = min(NEAR_FLOOR, len(subsets))
    lowest = np.full((STUDIES, kept + 1), -np.inf)
    for some, rows in zip(np.split(samples, BLOCKS), np.split(lowest, BLOCKS), strict=True):
        means = some @ subsets.T
        means.partition(kept - 1, axis=1)
        rows[:, 1:] = np.sort(means[:, :kept], axis=1)
    return lowest


def seeds_needed(deviation: float, difference: float, alpha: float, sides: int, power: float = POWER) -> int | None:
    """Return the smallest number of seeds for which `smallest_detectable` is at most `difference`; None beyond a million.

    It is at least the number with which a sign-flip test can reject at all: p is at least sides 2^(-n).
    """

    def may_be_enough(n: int) -> bool:  # without a simulation
        return sides * 2.0**-n <= alpha and AT_LEAST * _by_t(n, alpha, sides, power) * deviation <= difference

    def enough(n: int) -> bool:
        return smallest_detectable(deviation, n, alpha, sides, power) <= difference

    return _first(enough, _first(may_be_enough, 2)) if may_be_enough(MOST_SEEDS) else None


def _first(true: Callable[[int], bool], low: int) -> int:
    """Return the smallest number from `low` on for which a function is true; it must be true for all larger ones, too."""
    high, step = low, 1
    while not true(high):
        low, high, step = high + 1, high + step, 2 * step
    return low + bisect.bisect_left(range(low, high), True, key=true)


def fewest_seeds(claims: int) -> int:
    """Return the fewest seeds with which Holm's method can decide the first of `claims` >= 1 differences at level .05.

    The smallest n with 2^(1 - n) <= .05 / claims: if all n differences have the same sign, a sign-flip test has p 2^(1 - n).
    """
    return 1 + math.ceil(math.log2(claims / 0.05) - 1e-12)
