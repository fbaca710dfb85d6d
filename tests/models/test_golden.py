"""Models and training against recorded results of torch: the parity tests without torch."""

import math
from pathlib import Path

import numpy as np
import published
import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
MADE = "if a case or its inputs were changed on purpose, run tests/golden/make.py; otherwise this is a bug"


def recorded(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


@pytest.mark.parametrize("name", published.CASES)
def test_weights_equal_the_recorded_ones(name):
    leaves = published.by_path(published.weights(published.build(published.CASES[name]))).values()
    assert math.fsum(np.concatenate([leaf.ravel() for leaf in leaves])) == recorded(name)["weights_sum"], MADE


@pytest.mark.parametrize("name", published.CASES)
def test_logits_in_float64(x64, name):
    model = published.build(published.CASES[name])
    ours = published.logits_everywhere(model, published.weights(model), published.random_tokens(8))
    assert published.difference(ours, recorded(name)["logits_float64"]) <= 1e-12, MADE


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_logits_in_float32(name):
    model = published.build(published.CASES[name])
    ours = published.logits_everywhere(model, published.weights(model, np.float32), published.random_tokens(8))
    assert published.difference(ours, recorded(name)["logits_float32"]) <= 1e-6, MADE


@pytest.mark.slow
@pytest.mark.parametrize("tied", ["untied", "tied"])
@pytest.mark.parametrize("name", published.PUBLISHED)
def test_training_in_float64(x64, name, tied):
    model = published.build(published.CASES[name])
    steps, protocol = published.TRAINING[name]
    how = "stored" if tied == "tied" else "untied"
    losses, final = published.train(model, published.weights(model), published.visits(steps), how, protocol)
    golden = recorded(name)
    assert published.difference(losses, golden[f"losses_{tied}"]) <= 1e-10, MADE
    # The parity position is never predicted, so a mixer's logits there are arbitrary (see test_parity).
    logits = published.logits_everywhere(model, final, published.random_tokens(8))
    assert published.difference(logits[:, :-1], golden[f"final_logits_{tied}"][:, :-1]) <= 1e-10, MADE
