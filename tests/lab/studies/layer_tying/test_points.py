"""The points of a model that a tracker shows, by hand."""

import numpy as np

from tiejax.lab.studies.layer_tying.records import points_of


def test_points_count_the_trained_steps():
    """Three steps in groups of two, each of which begins with an action; a value is shown after its step."""
    records = {
        "step": {"loss": np.float32([4, 3, 2]), "distinct": np.array([2, 2, 1])},
        "validation": {"step": np.array([0, 2, 3]), "loss": np.array([5.0, 3.5, 2.5])},
        "action": {"reward": np.float32([0.5, -0.5])},
    }
    names = {name: f"{name}/agent/seed-7" for name in ("train_loss", "distinct_layers", "validation_loss", "reward")}
    assert points_of(records, "agent", 7, k=2) == {
        0: {names["validation_loss"]: 5.0},
        1: {names["train_loss"]: 4.0, names["distinct_layers"]: 2},
        2: {names["train_loss"]: 3.0, names["distinct_layers"]: 2, names["validation_loss"]: 3.5, names["reward"]: 0.5},
        3: {names["train_loss"]: 2.0, names["distinct_layers"]: 1, names["validation_loss"]: 2.5, names["reward"]: -0.5},
    }
