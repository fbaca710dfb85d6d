"""The choice of learning rates, and of factors for those of the tables."""

import itertools

import numpy as np
import pytest

from tiejax.lab.runs.rates import choose_rates, tuning_rows


def far(pairs, *best):
    """(ln rate - ln best rate)^2 + (ln factor - ln best factor)^2."""
    return np.square(np.log(np.array(pairs) / np.array(best))).sum(axis=1)


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
    found = choose_rates(
        [0.1, 0.3, 0.6] if best > 1 else [1e-3, 2e-3, 4e-3], lambda pairs: np.outer(far(pairs, best, 1), np.ones(3))
    )
    np.testing.assert_allclose(found.rates, tried)
    assert found.at_edge == at_edge
    assert np.isfinite(found.losses).all()


def test_a_rate_at_which_a_model_diverges_is_not_chosen():
    losses = {1e-3: [3.0, 3.0], 2e-3: [2.0, 2.0], 4e-3: [1.0, np.inf], 8e-3: [np.inf, np.inf]}
    found = choose_rates([1e-3, 2e-3, 4e-3, 8e-3], lambda pairs: np.array([losses[rate] for rate, _ in pairs]))
    assert found.rate == 2e-3


def test_a_single_rate_or_factor_is_used_as_it_is():
    found = choose_rates([1e-2], lambda pairs: far(pairs, 1, 8)[:, None], factors=[1.0, 2.0])
    assert found.pairs == [(1e-2, 1.0), (1e-2, 2.0), (1e-2, 4.0), (1e-2, 8.0), (1e-2, 16.0)]
    assert found.pair == (1e-2, 8.0)
    assert not found.at_edge


RATES, FACTORS = [1e-3, 2e-3, 4e-3, 8e-3], [1.0, 2.0, 4.0, 8.0]


def test_the_first_seed_keeps_four_pairs_for_every_seed():
    first, every = [], []

    def first_at(pairs):
        first.extend(pairs)
        return far(pairs, 3e-3, 3)

    def losses_at(pairs):
        every.extend(pairs)
        return np.stack([far(pairs, 3e-3, 3), far(pairs, 4e-3, 2)], axis=1)

    found = choose_rates(RATES, losses_at, FACTORS, first_at)
    assert sorted(first) == sorted(set(first)) == list(itertools.product(RATES, FACTORS))  # once: the best is inside
    assert set(every) == {(rate, factor) for rate in (2e-3, 4e-3) for factor in (2.0, 4.0)}
    assert found.pair == (4e-3, 2.0)
    assert not found.at_edge
    np.testing.assert_allclose(found.losses[:, 0], far(found.pairs, 3e-3, 3))
    assert np.isfinite(found.losses[:, 1]).sum() == 4
    assert [len(losses) for losses in tuning_rows({"tied": found})["tied"]["losses"]].count(2) == 4


def test_the_first_seed_extends_the_grid_by_a_line_in_either_direction():
    found = choose_rates(RATES, lambda pairs: far(pairs, 1.2e-2, 0.4)[:, None], FACTORS, lambda pairs: far(pairs, 1.2e-2, 0.4))
    assert set(found.rates) == {*RATES, 1.6e-2, 3.2e-2}  # the grid has no hole: also in the corner
    assert set(found.factors) == {*FACTORS, 0.5, 0.25}
    assert found.pair == (1.6e-2, 0.5)
    assert not found.at_edge


def test_seeds_that_prefer_an_edge_try_its_neighbours():
    """The first seed prefers rates inside the grid, the mean of all a rate below it."""
    found = choose_rates(RATES, lambda pairs: far(pairs, 7e-4, 2)[:, None], FACTORS, lambda pairs: far(pairs, 2e-3, 2))
    assert found.pair[0] < 1e-3
    assert not found.at_edge


def test_what_diverges_everywhere_is_reported_at_the_edge_after_three_extensions():
    found = choose_rates(
        RATES, lambda pairs: np.full((len(pairs), 2), np.inf), FACTORS, lambda pairs: np.full(len(pairs), np.inf)
    )
    assert found.at_edge


def test_of_equal_losses_the_lowest_pair_is_the_best_and_the_edge_is_followed():
    found = choose_rates([2.0**-3, 2.0**-2], lambda pairs: np.ones((len(pairs), 2)))
    np.testing.assert_allclose(found.rates, [2.0**-6, 2.0**-5, 2.0**-4, 2.0**-3, 2.0**-2])
    assert found.rate == 2.0**-6
    assert found.at_edge


@pytest.mark.parametrize(
    ("rates", "best", "tried"), [([0.2, 0.4, 0.8], 1.6, [0.2, 0.4, 0.8, 1.6, 3.2]), ([2, 4, 8], 1.0, [0.5, 1, 2, 4, 8])]
)
def test_rates_around_one(rates, best, tried):
    found = choose_rates(rates, lambda pairs: far(pairs, best, 1)[:, None], most=np.inf)
    assert found.rates.tolist() == tried
    assert found.rate == best
