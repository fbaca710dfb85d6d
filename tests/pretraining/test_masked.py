"""The masked loss against a loop over tokens, on one device and on two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.pretraining.loss import Head
from tiejax.pretraining.masked import masked_loss, masked_loss_on_devices, predict_masked
from tiejax.text.masking import MaskedRows
from tiejax.training.placement import DATA

ROWS, LENGTH, WIDTH, VOCABULARY = 4, 6, 5, 9
PLACES = [[1, 7, 8], [13, 14, 23]]  # in the rows of the first half, and of the second


def halves(rng):
    """Masked rows of two devices, with three of five slots in use each, all states, and the targets."""
    target = rng.integers(0, VOCABULARY, (2, 3))
    states = rng.standard_normal((ROWS, LENGTH, WIDTH))
    rows = [
        MaskedRows(
            tokens=jnp.zeros((2, LENGTH), jnp.int32),
            segments=jnp.ones((2, LENGTH), jnp.int32),
            row=jnp.arange(2) + 2 * half,
            slot=jnp.array([*(place - 12 * half for place in PLACES[half]), 0, 0]),
            target=jnp.array([*target[half], 0, 0]),
            weight=jnp.array([1.0, 1.0, 1.0, 0.0, 0.0]),
            overflow=jnp.int32(0),
        )
        for half in range(2)
    ]
    return rows, states, target


def by_loop(states, table, target):
    """The loss (nats) of every masked token, and whether the most likely token is the target."""
    flat = states.reshape(-1, WIDTH)
    logits = np.array([[table @ flat[place] for place in half] for half in PLACES])
    nats = [[-jax.nn.log_softmax(logits[h, i])[target[h, i]] for i in range(3)] for h in range(2)]
    return np.array(nats), logits.argmax(-1) == target


@pytest.fixture
def case(x64):
    rng = np.random.default_rng(3)
    rows, states, target = halves(rng)
    table = rng.standard_normal((VOCABULARY, WIDTH))
    return rows, jnp.asarray(states), jnp.asarray(table), *by_loop(states, table, target)


def test_slots_are_predicted_from_their_states(case):
    rows, states, table, nats, right = case
    for half in range(2):
        total, predicted = predict_masked(states[2 * half : 2 * half + 2], Head(table), rows[half], 2 * rows[half].weight)
        np.testing.assert_allclose(total, 2 * nats[half].sum(), rtol=1e-13)
        np.testing.assert_allclose(predicted.cross_entropy[:3], nats[half], rtol=1e-13)
        np.testing.assert_array_equal(predicted.correct[:3], right[half])


def test_head_with_transform_and_bias(case):
    """By hand: a narrow table after t(h) = tanh(h)[:3], and a bias."""
    rows, states, table, _, _ = case
    bias = jnp.linspace(-1, 1, VOCABULARY)
    total, predicted = predict_masked(
        states[:2], Head(table[:, :3], lambda h: jnp.tanh(h)[:, :3], bias), rows[0], rows[0].weight
    )
    logits = [np.tanh(states[place // 6, place % 6, :3]) @ table[:, :3].T + bias for place in PLACES[0]]
    nats = [-jax.nn.log_softmax(row)[target] for row, target in zip(logits, rows[0].target, strict=False)]
    np.testing.assert_allclose(predicted.cross_entropy[:3], nats, rtol=1e-13)
    np.testing.assert_allclose(total, sum(nats), rtol=1e-13)


def test_loss_of_weighted_rows(case):
    rows, states, table, nats, _ = case
    # The first half has one masked token in row 0 and two in row 1.
    for weight, expected in (([1.0, 1.0], nats[0].mean()), ([0.0, 1.0], nats[0][1:].mean()), ([0.0, 0.0], 0.0)):
        np.testing.assert_allclose(masked_loss(states[:2], Head(table), rows[0], jnp.asarray(weight)), expected, rtol=1e-13)


def test_losses_of_devices_add_up_to_the_mean(case):
    """Devices as a mapped axis: the losses add up, and the metrics are those of the whole batch."""
    rows, states, table, nats, right = case
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    loss = jax.vmap(lambda states, rows: masked_loss_on_devices(states, Head(table), rows), axis_name=DATA)
    shares, metrics = loss(states.reshape(2, 2, LENGTH, WIDTH), together)
    np.testing.assert_allclose(shares, nats.sum(1) / 6, rtol=1e-13)
    np.testing.assert_allclose(metrics["loss"], [nats.mean()] * 2, rtol=1e-13)
    np.testing.assert_allclose(metrics["accuracy"], [right.mean()] * 2, rtol=1e-13)
