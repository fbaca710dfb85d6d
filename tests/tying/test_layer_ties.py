"""Layer ties while an agent chooses them, and their wiring, against lists written by hand."""

import numpy as np
import pytest

from tiejax import tying


def test_starts():
    tied = tying.start_ties(3, "tied", "resolved")
    assert (tied.owner.tolist(), tied.trains.tolist(), tied.observation.tolist()) == ([0, 0, 0], [True] * 3, [0, 0, 0])
    own = tying.start_ties(3, "independent", "resolved")
    assert (own.owner.tolist(), own.trains.tolist(), own.observation.tolist()) == ([0, 1, 2], [True] * 3, [0, 1, 2])
    frozen = tying.start_ties(3, "frozen-random", "published")
    # The agent observes copies that do not exist.
    assert (frozen.owner.tolist(), frozen.trains.tolist(), frozen.observation.tolist()) == (
        [0, 1, 2],
        [True, False, False],
        [0, 0, 0],
    )


def test_told_tied_start():
    """No layer is a copy and all train; the agent observes copies of layer 0, but the truth for layers it has chosen."""
    start = tying.start_ties(4, "told-tied", "published")
    assert (start.owner.tolist(), start.trains.tolist(), start.observation.tolist()) == ([0, 1, 2, 3], [True] * 4, [0] * 4)
    assert tying.wiring(start, "compact", "owner", "published").trained.tolist() == [1] * 4
    published = tying.choose(tying.choose(start, 2, 1, "published"), 3, 3, "published")
    assert published.owner.tolist() == [0, 1, 1, 3]
    assert published.trains.tolist() == [True, True, False, True]
    assert published.observation.tolist() == [0, 0, 1, 3]
    resolved = tying.choose(tying.choose(start, 2, 1, "resolved"), 3, 3, "resolved")
    assert resolved.owner.tolist() == [0, 1, 1, 3]
    assert resolved.trains.tolist() == [True] * 4
    assert resolved.observation.tolist() == [0, 0, 1, 3]
    # 2 follows 1, and the agent observes it; for 3 it observes its choice.
    assert tying.choose(resolved, 1, 0, "resolved").observation.tolist() == [0, 0, 0, 3]


def test_resolved_ties_after_a_frozen_start():
    ties = tying.choose(tying.start_ties(3, "frozen-random", "resolved"), 2, 1, "resolved")
    # 2 reads the frozen layer 1 without unfreezing it; nothing has been chosen for layer 1 yet.
    wiring = tying.wiring(ties, "compact", "all", "resolved")
    assert (wiring.reads.tolist(), wiring.sends.tolist(), wiring.trained.tolist()) == ([0, 1, 1], [True, False, False], [1, 0])
    assert ties.observation.tolist() == [0, 0, 1]


def test_wiring_of_full_and_compact_storage():
    owner = tying.check_owner([0, 0, 2, 0])
    ties = tying.LayerTies(owner, np.ones(4, bool), owner)
    full, compact = (tying.wiring(ties, storage, "owner", "resolved") for storage in ("full", "compact"))
    assert (full.reads.tolist(), full.trained.tolist()) == ([0, 0, 2, 0], [1, 0, 1, 0])
    assert (compact.reads.tolist(), compact.trained.tolist()) == ([0, 0, 1, 0], [1, 1])
    assert full.sends.tolist() == compact.sends.tolist() == [True, False, True, False]
    assert tying.wiring(ties, "compact", "all", "resolved").sends.tolist() == [True] * 4
    assert {leaf.dtype for leaf in (*full, *compact)} == {np.dtype(np.int32), np.dtype(bool)}


@pytest.mark.parametrize("layers", [4, 12])
def test_random_actions_leave_few_independent_layers(layers):
    """After an episode layer i, from 0, is independent with probability 1 / (i + 1), whatever the others do."""
    rng, runs = np.random.default_rng(0), 1000
    independent = np.zeros((runs, layers), bool)
    for run in range(runs):
        ties = tying.start_ties(layers, "tied", "resolved")
        for layer in range(1, layers):
            ties = tying.choose(ties, layer, int(rng.integers(layer + 1)), "resolved")
        independent[run] = ties.owner == np.arange(layers)
    expected = 1 / (1 + np.arange(layers))
    np.testing.assert_allclose(independent.mean(0), expected, atol=4 * np.sqrt(0.25 / runs))
    spread = np.sqrt(np.sum(expected * (1 - expected)) / runs)
    assert abs(independent.sum(1).mean() - expected.sum()) < 4 * spread
