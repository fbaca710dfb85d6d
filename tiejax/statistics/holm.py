"""Holm's adjustment of p-values for a family of tests."""

from collections.abc import Sequence

import numpy as np


def holm_factors(p_values: Sequence[float]) -> list[int]:
    """Return for each test the number by which Holm's method multiplies its p-value.

    In ascending order of p, the i-th of m tests has the factor m - i + 1, up to the first test that fails; the tests after it
    fail as well, and share its factor.
    """
    factors = np.empty(len(p_values), int)
    factors[np.argsort(p_values, kind="stable")] = np.arange(len(p_values), 0, -1)
    return factors.tolist()


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method: p_(i) -> max_{j <= i} min(1, (m - j + 1) p_(j)) in ascending order.

    Source: S. Holm, Scand. J. Stat. 6 (1979) 65-70.
    """
    order, adjusted = np.argsort(p_values, kind="stable"), np.minimum(1, np.multiply(holm_factors(p_values), p_values))
    adjusted[order] = np.maximum.accumulate(adjusted[order])
    return adjusted.tolist()
