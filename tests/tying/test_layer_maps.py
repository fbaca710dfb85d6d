"""Published, random and user-written maps of layers, against lists written by hand."""

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
        ("middle-cycle", [0, 1, 1, 1, 1, 5]),
        ("reversed-halves", [0, 1, 2, 2, 1, 0]),
    ],
)
def test_maps_of_six_layers(name, expected):
    assert tying.static_map(name, 6, 3).tolist() == expected


def test_maps_of_twelve_layers():
    assert tying.static_map("cycle-reversed", 12, 3).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 1, 0]
    assert tying.static_map("sequence", 12, 5).tolist() == [0, 0, 0, 3, 3, 5, 5, 5, 8, 8, 10, 10]
    assert tying.static_map("middle-cycle", 12, 5).tolist() == [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 11]
    assert tying.static_map("reversed-halves", 5, 1).tolist() == [0, 1, 2, 1, 0]


@pytest.mark.parametrize("name", tying.MAPS)
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_all_maps_of_all_sizes_are_valid(name, layers):
    for distinct in range(1, layers + 1):
        owner = tying.static_map(name, layers, distinct)
        assert len(owner) == layers
        if name in ("sequence", "cycle", "cycle-reversed"):
            assert len(np.unique(owner)) == distinct


def test_random_maps_reach_all_maps_with_this_number_of_distinct_layers():
    rng = np.random.default_rng(0)
    seen = {tuple(tying.random_map(3, 2, rng).tolist()) for _ in range(200)}
    assert seen == {(0, 0, 2), (0, 1, 0), (0, 1, 1)}
    for distinct in (1, 4, 9):
        assert len(np.unique(tying.random_map(9, distinct, rng))) == distinct


@pytest.mark.parametrize("distinct", [0, 4])
def test_number_of_distinct_layers_out_of_range(distinct):
    with pytest.raises(tying.TieError, match=f"expected 1 to 3 distinct layers in a map of 3 layers, got {distinct}"):
        tying.random_map(3, distinct, np.random.default_rng(0))


def test_groups_are_owned_by_their_first_layer():
    # The published rule can lead to such groups: layer 2 reads layer 0's weights, layers 1 and 3 read the old weights of 2.
    assert tying.owner_from_groups(np.array([0, 2, 0, 2])).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        ({"mine": [0, 2, 2]}, "mine: owner: layer 1 cannot copy layer 2"),
        ({"mine": [0, 0]}, "mine: expected a list of 3 owners, one per layer, got 2 entries"),
        ({"mine": [0, 0, 1]}, "mine: owner: layer 2 copies layer 1, which is itself a copy of layer 0; use 0"),
    ],
)
def test_invalid_user_maps(maps, words):
    with pytest.raises(tying.TieError, match=words):
        tying.check_maps(maps, 3)
