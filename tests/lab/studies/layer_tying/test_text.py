"""Tests of the batches of a run, with its own details and with those of the published code."""

import numpy as np
import pytest

from tiejax.lab.studies.layer_tying import text
from tiejax.lab.studies.layer_tying.settings import Settings


def data_of(details):
    """Blocks filled with their index: 24 for training, so that 5 batches of 4 leave few unused, and 25 held out."""
    blocks = {split: np.repeat(np.arange(number)[:, None], 6, axis=1) for split, number in (("train", 24), ("test", 25))}
    whole = text.Text(None, blocks | {"validation": blocks["test"]})
    return text.build_data(Settings(details=details, batch_size=4, k=4, context=6, validation_blocks=12).resolved(), whole)


def numbers(batches):
    return np.array([batch.tokens[:, 0] for batch in batches])


@pytest.mark.parametrize(("details", "overlaps"), [("own", False), ("published", True)])
def test_batches_of_a_group_and_of_its_reward(details, overlaps):
    data, shared = data_of(details), []
    for group in range(60):
        drawn = numbers(data.group(0, group))
        assert drawn.shape == (5, 4)
        assert len(np.unique(drawn[:4])) == 16
        assert len(np.unique(drawn[4])) == 4
        shared.append(len(np.intersect1d(drawn[:4], drawn[4])))
        np.testing.assert_array_equal(drawn, numbers(data.group(0, group)))
    if overlaps:  # on average 4 x 16 / 24 of the reward's blocks
        assert abs(np.mean(shared) - 8 / 3) < 0.5
    else:
        assert not any(shared)


@pytest.mark.parametrize(
    ("details", "sizes", "weights"),
    [("own", [4, 4, 4, 4, 4, 4, 1], [4, 4, 4, 4, 4, 4, 1]), ("published", [10, 10, 5], [1, 1, 1])],
)
def test_weights_of_held_out_batches(details, sizes, weights):
    data = data_of(details)
    for split in ("validation", "test"):
        batches = data.held_out[split]
        assert [int(batch.weight.sum()) for batch, _ in batches] == sizes
        assert [weight for _, weight in batches] == weights
        assert {len(batch.tokens) for batch, _ in batches} == {sizes[0]}
        judged = np.concatenate([batch.tokens[batch.weight > 0, 0] for batch, _ in batches])
        np.testing.assert_array_equal(judged, np.arange(25))
    assert [weight for _, weight in data.selection] == ([4, 4, 4] if details == "own" else [1, 1])
