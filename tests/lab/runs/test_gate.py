"""The gate on a bigram model."""

import numpy as np
import pytest

from tiejax.lab.runs.gate import Gate, finite_means
from tiejax.lab.settings.command_line import BadInput


@pytest.mark.parametrize(
    ("margin", "losses", "failing"),
    [
        (0.1, {"tied": 3.5, "untied": 3.4}, []),
        (0.1, {"tied": 3.75, "untied": 3.4}, ["tied"]),
        (0.1, {"tied": np.inf, "untied": np.nan}, ["tied", "untied"]),
        (-0.5, {"tied": 4.0, "untied": 4.5}, ["untied"]),  # .5 nats above the bigram are allowed
        (None, {"tied": 9.0}, []),
    ],
)
def test_models_must_end_below_the_bigram_by_the_margin(margin, losses, failing):
    gate = Gate(3.8, margin)
    assert gate.failing(losses) == failing
    several = {name: np.array([loss - 0.01, loss + 0.01, np.nan]) for name, loss in losses.items()}
    facts = gate.facts(finite_means(several))["gate"]
    assert facts["losses"] == {name: pytest.approx(loss if loss < 9e9 else np.inf) for name, loss in losses.items()}
    assert (facts["bigram"], facts["margin"], bool(facts["failed"])) == (3.8, margin, bool(failing))
    if not failing:
        gate.check(losses)
        return
    with pytest.raises(BadInput, match=f"--gate: the {failing[0]} models end with .* where a bigram model has 3.800"):
        gate.check(losses)
