"""The models that choose learning rates, and the join of the segments of an arm."""

from fractions import Fraction

import numpy as np

from tiejax.lab.comparison.segments import segments_of
from tiejax.lab.comparison.training import Members, joined, tuning_blocks, tuning_stage
from tiejax.lab.studies.causal_untying import plan


def test_every_rate_is_tried_with_every_seed_in_whole_blocks():
    blocks = tuning_blocks([1e-3, 2e-3], [1000, 1001, 1002], 4)
    assert blocks == [Members([1000, 1001, 1002, 1000], [1e-3, 1e-3, 1e-3, 2e-3]), Members([1001, 1002], [2e-3, 2e-3])]
    assert [tuning_stage("tied", block) for block in blocks] == [
        "rate.tied.0.001-1000.to.0.002-1000",
        "rate.tied.0.002-1001.to.0.002-1002",
    ]


def test_records_are_joined_along_an_arm_and_its_parent():
    """Of the two records at a fork, that of the child is kept."""
    arms = plan.arms_of([Fraction(1, 2)])
    left = {}
    for segment in segments_of(arms):
        first, last = (int(10 * end) for end in (segment.first, segment.last))
        steps = np.arange(first, last + 1, 5)
        name = segment.arm.name
        losses = np.stack([steps + 100.0 * ["tied", "untie-1/2", "never-equal", "never-independent"].index(name)] * 2)
        left[segment.name] = {"train_step": steps, "train_loss": losses}
        if segment.last == 1:
            left[segment.name] |= {"nats": np.full((2, 3), 6.0)}
    arrays = joined(segments_of(arms), left)
    assert arrays["tied/train_step"].tolist() == [0, 5, 10]
    assert arrays["untie-1/2/train_loss"].tolist() == [[0, 105, 110]] * 2
    assert arrays["untie-1/2/nats"].shape == (2, 3)
