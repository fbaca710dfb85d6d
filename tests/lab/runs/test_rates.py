"""The choice of learning rates."""

import numpy as np
import pytest

from tiejax.lab.runs.rates import choose_rate


@pytest.mark.parametrize(
    ("best", "tried", "at_edge"),
    [
        (2e-3, [1e-3, 2e-3, 4e-3], False),
        (1e-3, [5e-4, 1e-3, 2e-3, 4e-3], False),
        (1.6e-2, [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2], False),
        (1.0, [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2], True),
        (9.0, [0.1, 0.3, 0.6], True),  # rates stay below 1
    ],
)
def test_rates_are_extended_while_the_best_is_at_the_edge(best, tried, at_edge):
    """Losses are (ln rate - ln best)^2, so that the rate nearest to `best` has the lowest."""
    found = choose_rate(
        [0.1, 0.3, 0.6] if best > 1 else [1e-3, 2e-3, 4e-3],
        lambda rates: np.outer(np.log(np.array(rates) / best) ** 2, np.ones(3)),
    )
    np.testing.assert_allclose(found.rates, tried)
    assert found.at_edge == at_edge


def test_a_rate_at_which_a_model_diverges_is_not_chosen():
    losses = {1e-3: [3.0, 3.0], 2e-3: [2.0, 2.0], 4e-3: [1.0, np.inf], 8e-3: [np.inf, np.inf]}
    found = choose_rate([1e-3, 2e-3, 4e-3, 8e-3], lambda rates: np.array([losses[rate] for rate in rates]))
    assert found.rates[found.best] == 2e-3


def test_factors_of_a_rate_are_extended_beyond_one():
    found = choose_rate([1.0, 2.0], lambda rates: np.outer(np.log(np.array(rates) / 8) ** 2, np.ones(2)), below=np.inf)
    np.testing.assert_allclose(found.rates, [1, 2, 4, 8, 16])
    assert not found.at_edge
