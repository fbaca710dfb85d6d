"""What more seeds would show: the smallest detectable difference, and the number of seeds that a margin needs."""

import math

from scipy import stats

POWER = 0.8


def smallest_detectable(deviation: float, n: int, alpha: float, sides: int) -> float:
    r"""Return the mean difference that `n` seeds show in four of five studies.

        (t_{1 - alpha / sides, n - 1} + t_{.8, n - 1}) s / sqrt(n)

    Args:
        deviation: s, the standard deviation of the differences over seeds.
        n: number of seeds, at least 2.
        alpha: level of the test.
        sides: 1 or 2.
    """
    quantiles = stats.t.ppf([1 - alpha / sides, POWER], n - 1)
    return float(quantiles.sum() * deviation / math.sqrt(n))


def seeds_needed(deviation: float, difference: float, alpha: float, sides: int) -> int:
    """Return the smallest number of seeds for which `smallest_detectable` is at most `difference`.

    It is at least the number with which a sign-flip test can reach p <= alpha at all.
    """

    def enough(n: int) -> bool:
        return sides * 2.0**-n <= alpha and smallest_detectable(deviation, n, alpha, sides) <= difference

    high = 2
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def fewest_seeds(claims: int, alpha: float = 0.05) -> int:
    """Return the fewest seeds with which Holm's method can decide the first of several differences.

    The smallest n with 2^(1 - n) <= alpha / claims: if all n differences have the same sign, a sign-flip test has p 2^(1 - n).

    Args:
        claims: number of claims that are tested together, at least 1.
        alpha: level of the family.
    """
    return 1 + math.ceil(math.log2(claims / alpha) - 1e-12)
