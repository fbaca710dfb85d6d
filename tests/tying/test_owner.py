"""Owner vectors: validity, choices and the resolution of ties, moves between slots; against lists written by hand."""

import numpy as np
import pytest

from tiejax import tying


@pytest.mark.parametrize(
    ("before", "layer", "choice", "after"),
    [
        ([0, 1, 2, 3], 2, 1, [0, 1, 1, 3]),
        ([0, 1, 1, 3], 3, 2, [0, 1, 1, 1]),  # the copy of a copy has its owner
        ([0, 1, 1, 1], 1, 0, [0, 0, 0, 0]),  # copies of a layer that becomes a copy follow it
        ([0, 0, 0, 0], 2, 2, [0, 0, 2, 0]),  # independent, alone
        ([0, 1, 1, 3], 2, 2, [0, 1, 2, 3]),
        ([0, 1, 2, 3], 3, 3, [0, 1, 2, 3]),  # already independent
        ([0, 0, 2, 2], 3, 2, [0, 0, 2, 2]),  # already a copy of it
    ],
)
def test_ties_resolve(before, layer, choice, after):
    assert tying.choose_owner(tying.check_owner(before), layer, choice).tolist() == after


def test_later_layers_cannot_be_copied():
    with pytest.raises(tying.TieError, match="layer 1 of 3 cannot copy layer 2; expected an index from 0 to 1"):
        tying.choose_owner(tying.independent(3), 1, 2)


def test_random_choices_give_valid_owner_vectors():
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
        # By the published rule layer 2's weights stay in use when it reads others: slot 2 is not lost.
        ([0, 1, 2, 2], [0, 1, 0, 2], "compact", [0, 1, 2], [False] * 3),
    ],
)
def test_moves(before, after, storage, source, separated):
    found = tying.move(np.array(before, np.int32), np.array(after, np.int32), storage)
    assert found.source.tolist() == source
    assert found.separated.tolist() == separated


def test_the_layers_whose_use_sends_gradient():
    owner = tying.check_owner([0, 0, 2, 2, 0, 5])
    assert tying.sends_gradient(owner, "owner").tolist() == [True, False, True, False, False, True]
    assert tying.sends_gradient(owner, "all").tolist() == [True] * 6


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ([0, 2, 2], "layer 1 cannot copy layer 2"),
        ([0, -1], "layer 1 cannot copy layer -1"),
        ([0, 0, 1], "layer 2 copies layer 1, which is itself a copy of layer 0; use 0"),
        ([], "expected a vector of one layer index per layer"),
        (np.array([0.0, 1.0]), "expected a vector of one layer index per layer"),
        (np.array([[0, 1]]), "expected a vector of one layer index per layer"),
    ],
)
def test_invalid_owner_vectors(owner, words):
    with pytest.raises(tying.TieError, match=words):
        tying.check_owner(owner)


@pytest.mark.parametrize(
    ("owner", "storage", "words"),
    [
        ([0, 0, 1], "ful", "storage: expected full or compact, got 'ful'|'ful'"),
        ([0, 2, 2], "compact", "owner: expected each layer to read"),
        ([0.0, 0.5], "compact", "owner: expected each layer to read|owner': f64"),
    ],
)
def test_unknown_storage_and_later_layers(owner, storage, words):
    """Where signatures are checked, an unknown storage and a vector of floats are refused before they are looked at."""
    vector = np.array(owner)
    for function in (tying.slots, tying.stack_size):
        with pytest.raises((tying.TieError, TypeError), match=words):
            function(vector if vector.dtype == float else vector.astype(np.int32), storage)


def test_moves_between_vectors_of_one_length():
    before = tying.check_owner([0, 0, 2])
    assert tying.move(before, tying.independent(3), "full").source.tolist() == [0, 0, 2]
    with pytest.raises(tying.TieError, match="owner: expected vectors of one length, got 3 and 2 layers"):
        tying.move(before, tying.independent(2), "full")


def test_owners_are_int32():
    assert tying.check_owner([0, 1]).dtype == np.int32
    assert tying.independent(3).tolist() == [0, 1, 2]
