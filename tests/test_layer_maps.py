"""Owner vectors: fixed maps as published, choices and how ties resolve, what a step is told; against lists written by hand."""

import numpy as np
import pytest

from tiejax import tying


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("untied", [0, 1, 2, 3, 4, 5]),
        ("all-one", [0, 0, 0, 0, 0, 0]),
        # Figure 2 of Takase and Kiyono: 1 1 2 2 3 3, 1 2 3 1 2 3, 1 2 3 3 2 1.
        ("sequence", [0, 0, 2, 2, 4, 4]),
        ("cycle", [0, 1, 2, 0, 1, 2]),
        ("cycle-reversed", [0, 1, 2, 2, 1, 0]),
        ("sandwich", [0, 1, 1, 1, 1, 5]),
        ("reversed-halves", [0, 1, 2, 2, 1, 0]),
    ],
)
def test_maps_of_six_layers(name, expected):
    assert tying.static_map(name, 6, 3).tolist() == expected


def test_maps_of_twelve_layers():
    assert tying.static_map("cycle-reversed", 12, 3).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 1, 0]
    assert tying.static_map("sequence", 12, 5).tolist() == [0, 0, 0, 3, 3, 5, 5, 5, 8, 8, 10, 10]
    assert tying.static_map("reversed-halves", 5, 1).tolist() == [0, 1, 2, 1, 0]


@pytest.mark.parametrize("name", tying.MAPS)
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_every_map_of_every_height_is_a_map(name, layers):
    for distinct in range(1, layers + 1):
        owner = tying.static_map(name, layers, distinct)
        assert len(owner) == layers
        if name in ("sequence", "cycle", "cycle-reversed"):
            assert len(np.unique(owner)) == distinct


def test_random_maps_have_so_many_distinct_layers_and_are_all_reached():
    rng = np.random.default_rng(0)
    seen = {tuple(tying.random_map(3, 2, rng).tolist()) for _ in range(200)}
    assert seen == {(0, 0, 2), (0, 1, 0), (0, 1, 1)}
    for distinct in (1, 4, 9):
        assert len(np.unique(tying.random_map(9, distinct, rng))) == distinct


@pytest.mark.parametrize("distinct", [0, 4])
def test_maps_with_too_many_or_no_layers(distinct):
    with pytest.raises(tying.TieError, match=f"1 to 3 distinct ones, not {distinct}"):
        tying.random_map(3, distinct, np.random.default_rng(0))


def test_groups_are_owned_by_their_first_layer():
    # Groups as the published rule may leave them: layer 0's weights are used by 2, layer 2's old ones by 1 and 3.
    assert tying.of_groups(np.array([0, 2, 0, 2])).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("before", "layer", "choice", "after"),
    [
        ([0, 1, 2, 3], 2, 1, [0, 1, 1, 3]),
        ([0, 1, 1, 3], 3, 2, [0, 1, 1, 1]),  # the copy of a copy has its owner
        ([0, 1, 1, 1], 1, 0, [0, 0, 0, 0]),  # copies of a layer that becomes a copy follow it
        ([0, 0, 0, 0], 2, 2, [0, 0, 2, 0]),  # independent, alone
        ([0, 1, 1, 3], 2, 2, [0, 1, 2, 3]),
        ([0, 1, 2, 3], 3, 3, [0, 1, 2, 3]),  # it is independent already
        ([0, 0, 2, 2], 3, 2, [0, 0, 2, 2]),  # it is a copy of that already
    ],
)
def test_ties_resolve(before, layer, choice, after):
    assert tying.choose_owner(tying.check_owner(before), layer, choice).tolist() == after


def test_a_later_layer_cannot_be_copied():
    with pytest.raises(tying.TieError, match="layer 1 of 3 cannot copy layer 2"):
        tying.choose_owner(tying.independent(3), 1, 2)


def test_random_choices_keep_every_owner_its_own():
    rng = np.random.default_rng(1)
    owner = tying.independent(6)
    for _ in range(300):
        layer = int(rng.integers(1, 6))
        owner = tying.choose_owner(owner, layer, int(rng.integers(0, layer + 1)))
        np.testing.assert_array_equal(tying.check_owner(owner), owner)


@pytest.mark.parametrize(
    ("before", "after", "storage", "source", "separated"),
    [
        ([0, 1, 1, 3], [0, 1, 1, 1], "compact", [0, 1], [False, False]),
        ([0, 1, 1, 3], [0, 1, 2, 3], "compact", [0, 1, 1, 2], [False, False, True, False]),
        ([0, 0, 2, 2], [0, 0, 0, 0], "compact", [0], [False]),
        ([0, 0, 2, 2], [0, 0, 2, 3], "full", [0, 1, 2, 2], [False, False, False, True]),
        ([0, 1, 2, 3], [0, 1, 2, 0], "full", [0, 1, 2, 3], [False] * 4),
        # By the published rule layer 2's weights stay in use when it has others: it owns nothing, and is not lost.
        ([0, 1, 2, 2], [0, 1, 0, 2], "compact", [0, 1, 2], [False] * 3),
    ],
)
def test_moves(before, after, storage, source, separated):
    found = tying.move(np.array(before, np.int32), np.array(after, np.int32), storage)
    assert found.source.tolist() == source
    assert found.separated.tolist() == separated


def test_starts():
    tied = tying.start_ties(3, "tied", "resolved")
    assert (tied.owner.tolist(), tied.trains.tolist(), tied.observation.tolist()) == ([0, 0, 0], [True] * 3, [0, 0, 0])
    own = tying.start_ties(3, "independent", "resolved")
    assert (own.owner.tolist(), own.trains.tolist(), own.observation.tolist()) == ([0, 1, 2], [True] * 3, [0, 1, 2])
    frozen = tying.start_ties(3, "frozen-random", "published")
    # The agent is told of copies that there are not.
    assert (frozen.owner.tolist(), frozen.trains.tolist(), frozen.observation.tolist()) == (
        [0, 1, 2],
        [True, False, False],
        [0, 0, 0],
    )


def test_the_published_rule_step_by_step():
    ties = tying.start_ties(4, "frozen-random", "published")
    told = []
    for layer, choice in ((2, 2), (3, 2), (2, 0), (2, 2), (3, 3)):
        ties = tying.choose(ties, layer, choice, "published")
        wiring = tying.wiring(ties, "compact", "owner", "published")
        told.append((ties.owner.tolist(), wiring.sends.tolist(), wiring.trained.tolist(), ties.observation.tolist()))
    assert told == [
        ([0, 1, 2, 3], [True, False, True, False], [1, 0, 1, 0], [0, 0, 2, 0]),
        # 3 copies 2: only 2's own position trains the weights.
        ([0, 1, 2, 2], [True, False, True, False], [1, 0, 1], [0, 0, 2, 2]),
        # 2 copies 0, and 3 stays with the old weights, which nobody trains.
        ([0, 1, 0, 2], [True, False, False, False], [1, 0, 0], [0, 0, 0, 2]),
        # "Independent" trains again, but what is shared stays shared and is updated twice.
        ([0, 1, 0, 2], [True, False, True, False], [2, 0, 0], [0, 0, 2, 2]),
        ([0, 1, 0, 2], [True, False, True, True], [2, 0, 1], [0, 0, 2, 3]),
    ]


def test_resolved_ties_of_a_frozen_start():
    ties = tying.choose(tying.start_ties(3, "frozen-random", "resolved"), 2, 1, "resolved")
    # 2 reads the frozen layer 1, and does not thaw it; of 1 nothing has been chosen yet.
    wiring = tying.wiring(ties, "compact", "all", "resolved")
    assert (wiring.reads.tolist(), wiring.sends.tolist(), wiring.trained.tolist()) == ([0, 1, 1], [True, False, False], [1, 0])
    assert ties.observation.tolist() == [0, 0, 1]


def test_uses_of_full_and_compact_storage():
    owner = tying.check_owner([0, 0, 2, 0])
    ties = tying.LayerTies(owner, np.ones(4, bool), owner)
    full, compact = (tying.wiring(ties, storage, "owner", "resolved") for storage in ("full", "compact"))
    assert (full.reads.tolist(), full.trained.tolist()) == ([0, 0, 2, 0], [1, 0, 1, 0])
    assert (compact.reads.tolist(), compact.trained.tolist()) == ([0, 0, 1, 0], [1, 1])
    assert full.sends.tolist() == compact.sends.tolist() == [True, False, True, False]
    assert tying.wiring(ties, "compact", "all", "resolved").sends.tolist() == [True] * 4
    assert {leaf.dtype for leaf in (*full, *compact)} == {np.dtype(np.int32), np.dtype(bool)}


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        ({"mine": [0, 2, 2]}, "mine: owner: layer 1 cannot copy layer 2"),
        ({"mine": [0, 0]}, "mine: must have one owner for each of the 3 layers, has 2 entries"),
        ({"mine": [0, 0, 1]}, "mine: owner: layer 2 copies layer 1, which is itself a copy of 0"),
    ],
)
def test_maps_of_a_users_own_that_are_none(maps, words):
    with pytest.raises(tying.TieError, match=words):
        tying.check_maps(maps, 3)
