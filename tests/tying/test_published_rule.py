"""The published rule of layer ties, step by step, against lists written by hand, and the table in its documentation."""

from collections import Counter

import numpy as np

from tiejax import tying
from tiejax.tying import published_rule

ACTIONS = ((2, 2), (3, 2), (2, 0), (2, 2), (3, 3))  # (layer, the layer it copies)


def test_published_rule_step_by_step():
    ties = tying.start_ties(4, "frozen-random", "published")
    after = []
    for layer, choice in ACTIONS:
        ties = tying.choose(ties, layer, choice, "published")
        wiring = tying.wiring(ties, "compact", "owner", "published")
        after.append((ties.owner.tolist(), wiring.sends.tolist(), wiring.trained.tolist(), ties.observation.tolist()))
    assert after == [
        ([0, 1, 2, 3], [True, False, True, False], [1, 0, 1, 0], [0, 0, 2, 0]),
        # 3 copies 2: only layer 2 trains the weights.
        ([0, 1, 2, 2], [True, False, True, False], [1, 0, 1], [0, 0, 2, 2]),
        # 2 copies 0, and 3 keeps the old weights, which no layer trains.
        ([0, 1, 0, 2], [True, False, False, False], [1, 0, 0], [0, 0, 0, 2]),
        # Independent, 2 trains again, but shared weights stay shared and are updated twice.
        ([0, 1, 0, 2], [True, False, True, False], [2, 0, 0], [0, 0, 2, 2]),
        ([0, 1, 0, 2], [True, False, True, True], [2, 0, 1], [0, 0, 2, 3]),
    ]


def test_start_tied_trains_only_the_first_layer():
    ties = tying.start_ties(3, "tied", "published")
    wiring = tying.wiring(ties, "full", "owner", "published")
    assert ties.owner.tolist() == ties.observation.tolist() == [0, 0, 0]
    assert (wiring.sends.tolist(), wiring.trained.tolist()) == ([True, False, False], [1, 0, 0])


def cells(ties, wiring):
    """Return the four columns of the table for one rule."""
    rows = ties.owner, ("T" if trains else "." for trains in ties.trains), ties.observation, wiring.trained
    return ["".join(map(str, row)) for row in rows]


def test_documented_table_matches_both_rules():
    lines = [line.split() for line in (published_rule.__doc__ or "").splitlines() if line.startswith("    ")]
    published, resolved = (tying.start_ties(4, "frozen-random", rule) for rule in ("published", "resolved"))
    table = []
    for action in (None, *ACTIONS):
        if action is not None:
            published, resolved = tying.choose(published, *action, "published"), tying.choose(resolved, *action, "resolved")
        wiring = tying.wiring(published, "full", "owner", "published")
        table.append([*cells(published, wiring), *cells(resolved, tying.wiring(resolved, "full", "all", "resolved"))])
    assert [line[-8:] for line in lines[2:]] == table
    words = ["start", *(f"{layer} {'is independent' if layer == choice else f'copies {choice}'}" for layer, choice in ACTIONS)]
    assert [" ".join(line[:-8]) for line in lines[2:]] == words


def actions_until_all_read_the_first(layers, rng):
    """Count random actions, for one layer after the other, until all layers read the first layer's weights."""
    ties, number = tying.start_ties(layers, "frozen-random", "published"), 0
    while ties.owner.any():
        layer = 1 + number % (layers - 1)
        ties = tying.choose(ties, layer, int(rng.integers(0, layer + 1)), "published")
        number += 1
    return number


def distribution_until_all_read_the_first(layers, most):
    """Return the exact distribution of that count, up to `most`, over all maps that random actions can reach."""
    maps, ended = Counter({tuple(range(layers)): 1.0}), np.zeros(most + 1)
    for number in range(1, most + 1):
        layer, after = 1 + (number - 1) % (layers - 1), Counter()
        for owner, chance in maps.items():
            for read in (*owner[:layer], owner[layer]):  # the weights of an earlier layer or, if independent, those it reads
                after[(*owner[:layer], read, *owner[layer + 1 :])] += chance / (layer + 1)
        ended[number], maps = after.pop((0,) * layers, 0.0), after
    return ended


def test_random_actions_soon_tie_all_layers_to_the_first():
    """The documented numbers, exactly and by simulation."""
    rng, exact = np.random.default_rng(0), distribution_until_all_read_the_first(5, 120)
    found = np.array([actions_until_all_read_the_first(5, rng) for _ in range(600)])
    assert 1 - exact.sum() < 1e-6
    mean = (np.arange(121) * exact).sum()
    spread = np.sqrt(((np.arange(121) - mean) ** 2 * exact).sum())
    assert round(mean, 1) == 10.4
    assert abs(found.mean() - mean) < 3 * spread / np.sqrt(len(found))
    assert [int(np.searchsorted(exact.cumsum(), share)) for share in (0.25, 0.5, 0.75, 0.95)] == [6, 8, 12, 23]
    for number in (6, 8, 12, 23):
        share = exact[: number + 1].sum()
        assert abs((found <= number).mean() - share) < 3 * np.sqrt(share * (1 - share) / len(found))
