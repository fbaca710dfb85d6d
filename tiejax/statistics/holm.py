"""Holm's adjustment of p-values for a family of tests."""

from collections.abc import Sequence


def holm_factors(p_values: Sequence[float]) -> list[int]:
    """Return for each test the number by which Holm's method multiplies its p-value.

    In ascending order of p, the i-th of m tests has the factor m - i + 1, up to the first test that fails; the tests after it
    fail as well, and share its factor.
    """
    return [len(p_values) - place for place in _places(p_values)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method: p_(i) -> max_{j <= i} min(1, (m - j + 1) p_(j)) in ascending order.

    Source: S. Holm, Scand. J. Stat. 6 (1979) 65-70.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    places = _places(p_values)
    for number in sorted(range(len(p_values)), key=places.__getitem__):
        largest = max(largest, min(1.0, (len(p_values) - places[number]) * p_values[number]))
        adjusted[number] = largest
    return adjusted


def _places(p_values: Sequence[float]) -> list[int]:
    """Return the place of each p-value in ascending order; equal ones keep their order."""
    order = sorted(range(len(p_values)), key=lambda number: (p_values[number], number))
    places = [0] * len(p_values)
    for place, number in enumerate(order):
        places[number] = place
    return places
