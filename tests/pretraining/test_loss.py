"""The chunked loss head: equal to a plain softmax, with less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.pretraining.loss import Head, causal_loss, chunk_of, predict_slots


def plain_loss(states, table, target, weight, bias=0):
    logits = states @ table.T + bias
    logs = jax.nn.log_softmax(logits)
    return -jnp.sum(weight * logs[jnp.arange(len(target)), target]), logits


def test_slots_without_weight_may_hold_any_target():
    rng = np.random.default_rng(0)
    states, table = jnp.asarray(rng.standard_normal((3, 4))), jnp.asarray(rng.standard_normal((5, 4)))
    weight = jnp.array([1.0, 1.0, 0.0])
    found = [predict_slots(states, table, jnp.array([1, 2, target]), weight)[0] for target in (-100, 0)]
    assert found[0] == found[1]


@pytest.mark.parametrize("target", [-100, -1, 5])
def test_a_target_outside_the_vocabulary_that_counts_is_nan(target):
    rng = np.random.default_rng(0)
    states, table = (
        jnp.asarray(rng.standard_normal((3, 4))),
        jnp.asarray(rng.standard_normal((200 if target == -100 else 5, 4))),
    )
    loss, predicted = predict_slots(states, table, jnp.array([1, target, 2], jnp.int32), jnp.ones(3))
    assert np.isnan(loss)
    np.testing.assert_array_equal(np.isnan(predicted.cross_entropy), [False, True, False])


def test_rows_of_one_token_predict_nothing():
    loss, gradient = jax.value_and_grad(
        lambda table: causal_loss(jnp.ones((2, 1, 4)), Head(table), jnp.zeros((2, 1), jnp.int32), jnp.ones(2))
    )(jnp.ones((5, 4)))
    assert loss == 0
    assert not gradient.any()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 1, 4, 7, 20])
@pytest.mark.parametrize("biased", [False, True])
def test_predictions_and_gradients_of_a_plain_softmax(x64, chunk, biased):
    """Value, predictions, and gradients with respect to states, table and bias; 20 slots in chunks, some of weight 0."""
    rng = np.random.default_rng(2)
    leaves = [jnp.asarray(rng.standard_normal(shape)) for shape in ((20, 6), (33, 6), (33,))][: 2 + biased]
    target, weight = rng.integers(0, 33, 20), np.where(np.arange(20) < 15, rng.random(20), 0)

    def ours(states, table, bias=None):
        return predict_slots(states, table, jnp.asarray(target), jnp.asarray(weight), bias, chunk)

    def plain(states, table, bias=0):
        return plain_loss(states, table, target, weight, bias)

    every = tuple(range(len(leaves)))
    value, predicted = ours(*leaves)
    gradients = jax.jit(jax.grad(lambda *leaves: 3 * ours(*leaves)[0], every))(*leaves)
    expected, logits = plain(*leaves)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    each = -jax.nn.log_softmax(logits)[np.arange(20), target]
    np.testing.assert_allclose(predicted.cross_entropy, each, rtol=1e-12)
    np.testing.assert_array_equal(predicted.correct, np.argmax(logits, 1) == target)
    wanted = jax.grad(lambda *leaves: 3 * plain(*leaves)[0], every)(*leaves)
    for one, other in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_uniform_predictions(x64):
    """A table of zeros without bias: ln 5 nats per slot. Ties with the target count as correct."""
    loss, predicted = predict_slots(jnp.ones((3, 2)), jnp.zeros((5, 2)), jnp.array([0, 2, 4]), jnp.ones(3))
    np.testing.assert_allclose(loss, 3 * np.log(5), rtol=1e-15)
    assert predicted.correct.all()


@pytest.mark.slow
def test_vmap_over_members(x64):
    rng = np.random.default_rng(3)
    states, table = jnp.asarray(rng.standard_normal((3, 10, 4))), jnp.asarray(rng.standard_normal((3, 12, 4)))
    target, weight = rng.integers(0, 12, 10), rng.random(10)

    def gradient(states, table):
        return jax.grad(lambda s: predict_slots(s, table, jnp.asarray(target), jnp.asarray(weight), chunk=4)[0])(states)

    together = jax.vmap(gradient)(states, table)
    for one, own, its_table in zip(together, states, table, strict=True):
        np.testing.assert_allclose(one, jax.grad(lambda s, t=its_table: plain_loss(s, t, target, weight)[0])(own), atol=1e-13)


def test_memory_does_not_grow_with_slots_times_vocabulary():
    """By the count of the compiler, for 8,192 slots and 30,000 tokens: all logits would take 983 MB."""
    slots, vocabulary, width = 8192, 30_000, 16

    def loss(states, table, target, weight):
        return predict_slots(states, table, target, weight)[0]

    shapes = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (
            ((slots, width), jnp.float32),
            ((vocabulary, width), jnp.float32),
            ((slots,), jnp.int32),
            ((slots,), jnp.float32),
        )
    ]
    temporary = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 4 * 2**25 + 2**24
    assert chunk_of(slots, vocabulary) * vocabulary * 4 <= 2**25
    assert chunk_of(100, 50) == 100


def test_losses_of_half_precision_states_are_in_float32():
    rng = np.random.default_rng(4)
    states, table = (
        jnp.asarray(rng.standard_normal((20, 6)), jnp.bfloat16),
        jnp.asarray(rng.standard_normal((9, 6)), jnp.float32),
    )
    loss, predicted = predict_slots(states, table, jnp.zeros(20, jnp.int32), jnp.ones(20))
    assert loss.dtype == predicted.cross_entropy.dtype == jnp.float32
    gradients = jax.grad(lambda *both: predict_slots(*both, jnp.zeros(20, jnp.int32), jnp.ones(20))[0], (0, 1))(states, table)
    assert [gradient.dtype for gradient in gradients] == [jnp.bfloat16, jnp.float32]
