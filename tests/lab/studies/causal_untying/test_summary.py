"""Joining the blocks of a run by their seeds."""

import numpy as np
import pytest

from tiejax.lab.comparison.training import join_blocks


def block(seeds, *arms):
    """Arrays in which every model has its seed as its loss."""
    return seeds, {f"{arm}/loss": np.array(seeds) for arm in arms} | {f"{arms[0]}/step": np.array([0, 9])}


def test_arms_of_some_seeds_are_joined_wherever_their_blocks_stand():
    """Exploratory arms in the first block only, and a control of three seeds after the blocks of the first part."""
    blocks = [
        block([3, 7], "tied", "explore"),
        block([4, 1], "tied"),
        block([3, 7], "cosine"),
        block([4], "cosine"),
        block([8], "tied"),
    ]
    joined = join_blocks(blocks, [3, 7, 4, 1, 8])
    assert {name: values.tolist() for name, values in joined.items()} == {
        "tied/loss": [3, 7, 4, 1, 8],
        "tied/step": [0, 9],
        "explore/loss": [3, 7],
        "cosine/loss": [3, 7, 4],
        "cosine/step": [0, 9],
    }


def test_seeds_in_another_order_are_refused():
    with pytest.raises(AssertionError, match=r"^cosine/loss: has the seeds \[7\]"):
        join_blocks([block([3, 7], "tied"), block([7], "cosine")], [3, 7])
