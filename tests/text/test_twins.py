"""Planted twins, words that cannot have one, and unrelated pairs."""

import numpy as np
import pytest

from tiejax.text.twins import COMMON_WORDS, Twins, plant, unrelated


def test_planting():
    vocabulary = {"the": 7, "be": 8, "to": 9}
    twins, missing = plant({0.5: ["the", "I"], 0.1: ["to"]}, 30, vocabulary.get)
    assert twins == Twins(30, ("the", "to"), (7, 9), (0.5, 0.1))
    assert missing == ["I"]
    assert twins.vocabulary == 32
    of, probability = twins.tables()
    assert of[[7, 8, 9]].tolist() == [30, 8, 31]
    np.testing.assert_allclose(probability[[7, 8, 9]], [0.5, 0, 0.1])
    # As in the paper: words outside the vocabulary are the unknown token, which gets a twin.
    assert plant({0.5: ["the", "I"]}, 30, vocabulary.get, unknown=1)[0].ids == (7, 1)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({0.0: ["the"]}, "expected a probability between 0 and 1, got 0"),
        ({1.5: ["the"]}, "expected a probability between 0 and 1, got 1.5"),
        ({0.5: ["the"], 0.1: ["the"]}, "'the' and 'the' are the same token"),
        ({0.5: ["ye", "thee"]}, "none of 'ye', 'thee' is a token of the vocabulary"),
    ],
)
def test_twins_that_cannot_be_planted(sets, message):
    with pytest.raises(ValueError, match=f"^twins: .*{message}"):
        plant(sets, 30, {"the": 7}.get)


def test_unrelated_pairs_are_distinct_and_deterministic():
    pairs = unrelated(len(COMMON_WORDS), 100)
    assert len(set(pairs)) == 100
    assert all(0 <= first < second < 100 for first, second in pairs)
    assert pairs == unrelated(100, 100)
    assert sorted(unrelated(3, 100)) == [(0, 1), (0, 2), (1, 2)]
