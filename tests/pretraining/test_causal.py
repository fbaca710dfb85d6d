"""The causal loss against a loop over tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.pretraining.loss import Head, causal_loss


def test_tokens_are_predicted_from_the_state_before(x64):
    rng = np.random.default_rng(0)
    states, table = rng.standard_normal((3, 5, 4)), rng.standard_normal((7, 4))
    tokens, weight = rng.integers(0, 7, (3, 5)), np.array([1.0, 0.0, 1.0])
    nats = [-jax.nn.log_softmax(table @ states[row, place - 1])[tokens[row, place]] for row in (0, 2) for place in range(1, 5)]
    states, table, tokens, weight = map(jnp.asarray, (states, table, tokens, weight))
    np.testing.assert_allclose(causal_loss(states, Head(table), tokens, weight), np.mean(nats), rtol=1e-13)


def test_head_with_transform_and_bias(x64):
    rng = np.random.default_rng(1)
    states, table, bias = rng.standard_normal((2, 5, 4)), rng.standard_normal((7, 3)), rng.standard_normal(7)
    tokens = rng.integers(0, 7, (2, 5))
    logits = np.tanh(states)[..., :3] @ table.T + bias
    nats = [-jax.nn.log_softmax(logits[row, place - 1])[tokens[row, place]] for row in (0, 1) for place in range(1, 5)]
    head = Head(jnp.asarray(table), lambda h: jnp.tanh(h)[:, :3], jnp.asarray(bias))
    loss = causal_loss(jnp.asarray(states), head, jnp.asarray(tokens), jnp.ones(2))
    np.testing.assert_allclose(loss, np.mean(nats), rtol=1e-13)


def test_end_token_is_predicted_from_the_last_state(x64):
    rng = np.random.default_rng(1)
    states, table = rng.standard_normal((2, 4, 3)), rng.standard_normal((6, 3))
    tokens, weight = rng.integers(0, 6, (2, 4)), np.array([1.0, 1.0])
    following = np.concatenate([tokens[:, 1:], [[5], [5]]], axis=1)
    nats = [-jax.nn.log_softmax(table @ states[row, place])[following[row, place]] for row in (0, 1) for place in range(4)]
    loss = causal_loss(jnp.asarray(states), Head(jnp.asarray(table)), jnp.asarray(tokens), jnp.asarray(weight), end=5)
    np.testing.assert_allclose(loss, np.mean(nats), rtol=1e-13)


def test_rows_without_weight_have_no_loss():
    states, table = jnp.ones((2, 3, 4)), jnp.ones((5, 4))
    assert float(causal_loss(states, Head(table), jnp.zeros((2, 3), jnp.int32), jnp.zeros(2))) == 0


def test_small_weights_give_the_weighted_mean(x64):
    """Also if they add up to less than 1."""
    rng = np.random.default_rng(0)
    states, table, tokens = (
        jnp.asarray(rng.standard_normal((2, 4, 3))),
        jnp.asarray(rng.standard_normal((5, 3))),
        rng.integers(0, 5, (2, 4)),
    )
    loss = lambda weight: float(causal_loss(states, Head(table), jnp.asarray(tokens), jnp.asarray(weight)))  # noqa: E731
    np.testing.assert_allclose(loss([0.01, 0.03]), loss([1.0, 3.0]), rtol=1e-12)
