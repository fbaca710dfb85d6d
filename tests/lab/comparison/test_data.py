"""Examples, batches and what is refused."""

import itertools

import numpy as np
import pytest

from tiejax.lab.comparison.data import checked
from tiejax.lab.settings.command_line import BadInput
from tiejax.training import FunctionFeed

EXAMPLES = {"x": np.arange(20).reshape(10, 2), "y": np.arange(10.0)}
HELD_OUT = {"x": np.arange(14).reshape(7, 2), "y": np.arange(7.0)}


def test_held_out_examples_are_all_read_once():
    whole, rest = checked(EXAMPLES, HELD_OUT, 3).batches()
    assert (whole["x"].shape, rest["x"].shape) == ((2, 3, 2), (1, 2))
    np.testing.assert_array_equal(np.concatenate([whole["y"].ravel(), rest["y"]]), np.arange(7.0))
    few, none = checked(EXAMPLES, HELD_OUT, 3).batches(3)
    assert (few["y"].ravel().tolist(), none) == ([0, 3, 6], None)
    assert checked(EXAMPLES, HELD_OUT, 9).batches()[0]["y"].shape == (1, 7)


def test_a_function_makes_the_batches_of_every_seed_and_step():
    feed = FunctionFeed(lambda seed, step: {"x": np.full((2, 3), 100 * seed + step)}, first=4, window=2)
    first, second = itertools.islice(feed.open([(7, 0), (8, 0)], range(1), 1, 0), 2)
    assert first["x"].shape == (2, 2, 2, 3)
    assert first["x"][:, :, 0, 0].tolist() == [[704, 705], [804, 805]]
    assert second["x"][:, :, 0, 0].tolist() == [[706, 707], [806, 807]]


def test_the_fingerprint_of_a_function_is_that_of_several_batches():
    """Also of one that knows no other seed or step."""

    def fingerprint(further):
        def batch(seed, step):
            value = 1 if seed == step == 0 else further(seed, step)
            return {"x": np.full((2, 2), value), "y": np.ones(2)}

        return checked(batch, HELD_OUT, 2).fingerprint

    prints = [fingerprint(function) for function in (lambda *at: 2, lambda *at: 3, lambda *at: {}[at])]
    assert len(set(prints)) == 3


def test_the_fingerprint_is_that_of_values():
    one, other = (checked(EXAMPLES | {"y": y}, HELD_OUT, 2).fingerprint for y in (EXAMPLES["y"], EXAMPLES["y"] + 1))
    assert one != other == checked(EXAMPLES | {"y": EXAMPLES["y"] + 1}, HELD_OUT, 2).fingerprint


@pytest.mark.parametrize(
    ("training", "held_out", "batch_size", "words"),
    [
        (EXAMPLES, HELD_OUT, 0, "batch_size: expected an integer >= 1, got 0"),
        (EXAMPLES, HELD_OUT, 11, "training: 10 examples are fewer than a batch of 11"),
        (EXAMPLES, lambda seed, step: None, 2, "held_out: expected arrays"),
        (EXAMPLES | {"y": np.arange(9.0)}, HELD_OUT, 2, "training: expected arrays with one number of examples, got 9, 10"),
        (EXAMPLES, {"x": HELD_OUT["x"]}, 2, "held_out: expected examples like those of training"),
        (EXAMPLES, HELD_OUT | {"x": np.ones((7, 3), int)}, 2, r"\{x: int64\[n, 2\], y: float64\[n\]\}, got"),
        (lambda seed, step: 1 / 0, HELD_OUT, 2, "training: the function failed for seed 0 and step 0: ZeroDivisionError"),
        ("text", HELD_OUT, 2, "training: expected arrays"),
    ],
)
def test_examples_that_are_refused(training, held_out, batch_size, words):
    with pytest.raises(BadInput, match=words):
        checked(training, held_out, batch_size)


def test_batches_in_one_buffer_that_differ_are_refused():
    buffer, calls = {"x": np.zeros((2, 2)), "y": np.zeros(2)}, itertools.count()

    def make(seed, step):
        buffer["x"][:] = next(calls)
        return buffer

    with pytest.raises(BadInput, match="training: the function returned two different batches for seed 0 and step 0"):
        checked(make, HELD_OUT, 2)
