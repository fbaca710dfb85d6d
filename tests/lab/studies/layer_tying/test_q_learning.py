"""Tests of Q-learning on one transition, against values computed by hand or in numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.lab.studies.layer_tying import q_learning

LAYERS = 3  # 1 + 2 + 3 values: layer 1 has indices 1 and 2, layer 2 has 3, 4 and 5


def integer(value):
    return jnp.asarray(value, jnp.int32)


def network_of(values):
    """Return a network with constant values."""
    network = q_learning.init(jax.random.key(0), LAYERS)
    return {**network, "out_kernel": jnp.zeros_like(network["out_kernel"]), "out_bias": jnp.asarray(values, jnp.float32)}


def state_of(*owners):
    return jnp.asarray(owners, jnp.int32)


def test_slices():
    assert q_learning.number_of_values(LAYERS) == 6
    assert q_learning.number_of_values(48) == 1176
    for layer, indices in ((0, [0]), (1, [1, 2]), (2, [3, 4, 5])):
        assert np.flatnonzero(np.isfinite(q_learning.mask_of(integer(layer), LAYERS))).tolist() == indices


def test_values_equal_a_two_layer_network_in_numpy():
    network = q_learning.init(jax.random.key(1), LAYERS)
    assert {name: leaf.shape for name, leaf in network.items()} == {
        "hidden_kernel": (3, 128),
        "hidden_bias": (128,),
        "out_kernel": (128, 6),
        "out_bias": (6,),
    }
    for name, leaf in network.items():
        bound = 1 / math.sqrt(3 if name.startswith("hidden") else 128)
        assert 0.8 * bound < np.abs(leaf).max() <= bound
    own = {name: np.asarray(leaf, np.float64) for name, leaf in network.items()}
    hidden = np.maximum(np.array([0.0, 1, 0]) @ own["hidden_kernel"] + own["hidden_bias"], 0)
    found = q_learning.values(network, state_of(0, 1, 0))
    np.testing.assert_allclose(found, hidden @ own["out_kernel"] + own["out_bias"], atol=1e-6)


@pytest.mark.parametrize(
    ("episode", "floor", "expected"), [(0, 0.1, 1.0), (1, 0.1, 0.95), (2, 0.1, 0.9025), (45, 0.1, 0.1), (300, 0.01, 0.01)]
)
def test_epsilon(episode, floor, expected):
    assert q_learning.epsilon_at(episode, floor) == pytest.approx(expected)


def test_greedy_choices_maximise_over_the_slice_of_the_layer():
    network = network_of([9, 1, 2, 5, 7, 6])
    for layer, expected in ((1, 1), (2, 1)):
        for seed in range(3):
            chosen = q_learning.choose(network, state_of(0, 1, 2), integer(layer), jnp.float32(0), jax.random.key(seed))
            assert int(chosen) == expected


def test_random_choices_are_uniform_over_the_actions_of_the_layer():
    network = network_of([0, 0, 0, 9, 0, 0])
    keys = jax.random.split(jax.random.key(0), 3000)
    chosen = jax.vmap(lambda key: q_learning.choose(network, state_of(0, 0, 0), integer(2), jnp.float32(1), key))(keys)
    # Each of three actions with probability 1/3: 1000 +- 26.
    assert np.abs(np.bincount(chosen, minlength=3) - 1000).max() < 130
    half = jax.vmap(lambda key: q_learning.choose(network, state_of(0, 0, 0), integer(2), jnp.float32(0.5), key))(keys)
    # The best action with probability .5 + .5 / 3.
    assert abs(int((half == 0).sum()) - 2000) < 130


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_an_agent_with_values_that_are_not_finite_leaves_layers_as_they_are(epsilon):
    network = q_learning.init(jax.random.key(0), 4)
    network["out_bias"] = network["out_bias"].at[0].set(jnp.nan)
    for layer, copied in ((1, 0), (2, 2), (3, 1)):
        chosen = q_learning.choose(network, state_of(0, 0, 2, 1), integer(layer), jnp.float32(epsilon), jax.random.key(3))
        assert int(chosen) == copied


@pytest.mark.parametrize(
    ("kind", "loss", "expected"),
    [
        ("negative-loss", 5.0, -5.0),
        ("negative-ppl", 5.0, -148.41316),
        ("clipped-ppl", 5.0, -10.0),
        ("clipped-ppl", math.log(4.0), -4.0),
    ],
)
def test_rewards(kind, loss, expected):
    assert float(q_learning.reward_of(kind, jnp.float32(loss))) == pytest.approx(expected)


def transition_of(layer, action, reward):
    return q_learning.Transition(state_of(0, 1, 2), integer(layer), integer(action), jnp.float32(reward), state_of(0, 0, 2))


def test_target_and_squared_error_by_hand():
    network = network_of([9, 1, 2, 5, 7, 6])
    # Layer 2: -3 + .99 x 7; its second action is worth 7.
    assert float(q_learning.target_of(network, transition_of(2, 1, -3.0))) == pytest.approx(-3 + 0.99 * 7)
    assert float(q_learning.squared_error(network, transition_of(2, 2, -3.0))) == pytest.approx((6 - 3.93) ** 2, rel=1e-5)
    # Layer 1 does not see layer 2's better actions.
    assert float(q_learning.target_of(network, transition_of(1, 0, 1.0))) == pytest.approx(1 + 0.99 * 2)


def test_an_update_by_hand():
    learner = q_learning.start(jax.random.key(4), LAYERS)
    transition = transition_of(2, 1, -3.0)
    before = {name: np.asarray(leaf, np.float64) for name, leaf in learner.network.items()}
    after, loss = jax.jit(q_learning.learn)(learner, transition)

    def values(owners):
        hidden = np.maximum(np.array(owners, float) @ before["hidden_kernel"] + before["hidden_bias"], 0)
        return hidden, hidden @ before["out_kernel"] + before["out_bias"]

    hidden, q = values([0, 1, 2])
    target = -3 + 0.99 * values([0, 0, 2])[1][3:6].max()
    assert float(loss) == pytest.approx((q[4] - target) ** 2, rel=1e-5)
    # Adam's first step has the size of the rate wherever the gradient is nonzero; decay acts everywhere; no gradient through
    # the target.
    gradient = np.zeros(6)
    gradient[4] = 2 * (q[4] - target)
    expected = before["out_bias"] - 1e-3 * (np.sign(gradient) + 0.01 * before["out_bias"])
    np.testing.assert_allclose(after.network["out_bias"], expected, atol=1e-7)
    kernel = np.sign(np.outer(hidden, gradient)) + 0.01 * before["out_kernel"]
    np.testing.assert_allclose(after.network["out_kernel"], before["out_kernel"] - 1e-3 * kernel, atol=1e-6)


def test_learning_finds_the_better_of_two_actions():
    learner, learn = q_learning.start(jax.random.key(0), 2), jax.jit(q_learning.learn)
    state = jnp.zeros(2, jnp.int32)
    for number in range(400):
        action = number % 2
        reward = jnp.float32(1.0 if action == 1 else -1.0)
        learner, _ = learn(learner, q_learning.Transition(state, integer(1), integer(action), reward, state))
    values = q_learning.values(learner.network, state)
    assert values[2] > values[1]


def test_returns_of_rewards_by_hand():
    np.testing.assert_allclose(q_learning.returns_of(np.array([[1.0, 2.0, -4.0]])), [[1 + 0.99 * -1.96, -1.96, -4.0]])


def test_the_agent_records_the_value_of_the_action_that_it_takes():
    for kind in ("learner", "random"):
        learner = q_learning.start(jax.random.key(2), LAYERS)._replace(network=network_of([9, 1, 2, 5, 7, 6]))
        agent = q_learning.Agent(kind, LAYERS, 0.0, jax.random.key(0), lambda tree: tree, learner, actions=4001)
        action = agent.act(np.array([0, 0, 2], np.int32))
        assert action.layer == 2
        if kind == "learner":
            assert (action.choice, float(action.value)) == (1, 7.0)
        else:
            assert np.isnan(action.value)
