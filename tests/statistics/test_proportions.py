"""McNemar's test against the binomial distribution, and Newcombe's interval against his table."""

import numpy as np
import pytest

from tiejax.statistics.proportions import mcnemar, newcombe


def outcomes(both, only_first, only_second, neither):
    first = np.repeat([True, True, False, False], [both, only_first, only_second, neither])
    second = np.repeat([True, False, True, False], [both, only_first, only_second, neither])
    return first, second


@pytest.mark.parametrize(
    ("table", "interval"),
    [
        ((36, 12, 2, 0), (0.0569, 0.3404)),
        ((18, 12, 2, 18), (0.0562, 0.3290)),
        ((53, 0, 0, 1), (-0.0729, 0.0729)),
    ],
)
def test_newcombe_reproduces_his_table(table, interval):
    """R. G. Newcombe, Stat. Med. 17 (1998), method 10."""
    np.testing.assert_allclose(newcombe(*outcomes(*table), 0.05), interval, atol=5e-5)


def test_newcombe_changes_sides_with_the_arms():
    first, second = outcomes(10, 7, 1, 6)
    low, high = newcombe(first, second, 0.1)
    np.testing.assert_allclose(newcombe(second, first, 0.1), (-high, -low))


def test_mcnemar_is_binomial_in_the_seeds_that_differ():
    # 7 of 8 seeds the same way: 2 (C(8, 0) + C(8, 1)) / 2^8.
    assert mcnemar(*outcomes(20, 7, 1, 4)) == pytest.approx(2 * (1 + 8) / 2**8)
    assert mcnemar(*outcomes(0, 6, 0, 0)) == pytest.approx(2**-5)
    assert mcnemar(*outcomes(3, 2, 2, 3)) == 1
    assert mcnemar(*outcomes(3, 0, 0, 3)) == 1
