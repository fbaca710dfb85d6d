"""Comparison of two yes-or-no outcomes of the same seeds: McNemar's exact test and Newcombe's interval."""

import math

import numpy as np
from scipy import special  # scipy.stats takes half a second to import


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p-value of McNemar's exact test: a binomial test of the seeds whose outcomes differ.

    first, second: yes-or-no outcomes of the two arms, one per seed.
    Source: Q. McNemar, Psychometrika 12 (1947) 153-157.
    """
    gains, losses = int((first & ~second).sum()), int((second & ~first).sum())
    return min(1.0, 2 * float(special.bdtr(min(gains, losses), gains + losses, 0.5)))


def newcombe(first: np.ndarray, second: np.ndarray, alpha: float) -> tuple[float, float]:
    r"""Return Newcombe's interval of a difference of paired proportions, p_1 - p_2, at level 1 - alpha.

        low  = d - sqrt((p_1 - l_1)^2 - 2 phi (p_1 - l_1)(u_2 - p_2) + (u_2 - p_2)^2)
        high = d + sqrt((u_1 - p_1)^2 - 2 phi (u_1 - p_1)(p_2 - l_2) + (p_2 - l_2)^2)

    where (l, u) are Wilson's score intervals and phi is the correlation of the outcomes, with a continuity correction.

    first, second: yes-or-no outcomes of the two arms, one per seed. alpha: 1 minus the level.
    Source: R. G. Newcombe, Stat. Med. 17 (1998) 2635-2650, method 10.
    """
    n = len(first)
    both, neither = int((first & second).sum()), int((~first & ~second).sum())
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    (low_1, high_1), (low_2, high_2) = (wilson(int(yes.sum()), n, alpha) for yes in (first, second))
    p_1, p_2 = float(first.mean()), float(second.mean())
    products = math.prod((both + only_first, only_second + neither, both + only_second, only_first + neither))
    excess = both * neither - only_first * only_second
    corrected = max(excess - n / 2, 0.0) if excess > 0 else float(excess)
    phi = corrected / math.sqrt(products) if products else 0.0

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(one**2 - 2 * phi * one * other + other**2, 0.0))

    difference = p_1 - p_2
    return difference - distance(p_1 - low_1, high_2 - p_2), difference + distance(high_1 - p_1, p_2 - low_2)


def wilson(yes: int, n: int, alpha: float) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion p = yes / n at level 1 - alpha.

        (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    where z is the quantile 1 - alpha / 2 of the normal distribution.
    """
    z = float(special.ndtri(1 - alpha / 2))
    centre, half = yes / n + z**2 / (2 * n), z * math.sqrt(yes * (n - yes) / n**3 + (z / n) ** 2 / 4)
    low, high = (centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n)
    return 0.0 if yes == 0 else low, 1.0 if yes == n else high
