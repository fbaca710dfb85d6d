"""Gradient weights: the oracle is a times the untied gradient at the source plus b times that at the target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autoencoder import autoencoder, reconstruction

from tiejax.tying import Tie, TieError, store, symmetrise, view

PATHS = "encoder/kernel", "decoder/kernel", "transpose"


def expected(params, x, a, b):
    tie = Tie(*PATHS)
    untied = jax.grad(reconstruction)(view(store(params, [tie]), [tie]), x)
    return untied, a * untied["encoder"]["kernel"] + b * untied["decoder"]["kernel"].T


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1, 0), (0, 1), (0.3, 2.0), (0.0, 0.0)])
def test_weights_in_both_forms_of_a_tie(x64, weights):
    params, x = autoencoder()
    tie = Tie(*PATHS, gradient=weights)
    untied, total = expected(params, x, *weights)
    stored = store(params, [tie])
    found = jax.grad(lambda stored: reconstruction(view(stored, [tie]), x))(stored)
    np.testing.assert_allclose(found["encoder"]["kernel"], total, rtol=1e-12, atol=1e-15)
    both = symmetrise(untied, [tie], True)
    np.testing.assert_allclose(both["encoder"]["kernel"], total, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(both["decoder"]["kernel"], total.T, rtol=1e-12, atol=1e-15)
    assert symmetrise(untied, [tie], False)["encoder"]["kernel"].tolist() == untied["encoder"]["kernel"].tolist()


def test_array_weights(x64):
    """One weight per row of the source, and one per entry."""
    params, x = autoencoder()
    shape = params["encoder"]["kernel"].shape
    rows, numbers = np.linspace(0, 1, shape[0])[:, None], np.random.default_rng(0).random(shape)
    tie = Tie(*PATHS, gradient=(rows, numbers))
    _, total = expected(params, x, rows, numbers)
    found = jax.grad(lambda stored: reconstruction(view(stored, [tie]), x))(store(params, [tie]))
    np.testing.assert_allclose(found["encoder"]["kernel"], total, rtol=1e-12)


def test_values_do_not_depend_on_weights():
    params, _ = autoencoder()
    tie = Tie(*PATHS, gradient=(0.1, 0.7))
    full = view(store(params, [tie]), [tie])
    np.testing.assert_array_equal(full["encoder"]["kernel"], params["encoder"]["kernel"])
    np.testing.assert_array_equal(full["decoder"]["kernel"], params["encoder"]["kernel"].T)


def test_weights_change_without_compiling_again(x64):
    params, x = autoencoder()
    stored, traces = store(params, [Tie(*PATHS)]), []

    @jax.jit
    def gradient(stored, a, b):
        traces.append(1)
        tie = Tie(*PATHS, gradient=(a, b))
        return jax.grad(lambda stored: reconstruction(view(stored, [tie]), x))(stored)

    for a, b in ((1.0, 0.0), (0.25, 0.5)):
        _, total = expected(params, x, a, b)
        np.testing.assert_allclose(gradient(stored, a, b)["encoder"]["kernel"], total, rtol=1e-12)
    assert len(traces) == 1


def test_members_can_differ_in_their_weights(x64):
    params, x = autoencoder()
    untied, _ = expected(params, x, 1, 1)
    weights = jnp.array([[[1.0, 1.0]], [[0.5, 0.25]]])
    found = jax.vmap(lambda weights: symmetrise(untied, [Tie(*PATHS)], True, weights))(weights)
    for member, (a, b) in enumerate(((1, 1), (0.5, 0.25))):
        np.testing.assert_allclose(found["encoder"]["kernel"][member], expected(params, x, a, b)[1], rtol=1e-12)


def test_several_targets_of_one_source():
    grads = {"a": jnp.ones(2), "b": jnp.full(2, 10.0), "c": jnp.full(2, 100.0)}
    ties = [Tie("a", "b", gradient=(0.5, 2.0)), Tie("a", "c", gradient=(0.5, 3.0))]
    assert symmetrise(grads, ties, True)["a"].tolist() == [320.5, 320.5]
    assert symmetrise(grads, ties, jnp.array([False, True]))["c"].tolist() == [300.5, 300.5]


def test_first_tie_of_a_source_that_is_on_weights_the_sources_use():
    grads = {"a": jnp.ones(2), "b": jnp.full(2, 10.0), "c": jnp.full(2, 100.0)}
    ties, weights = [Tie("a", "b"), Tie("a", "c")], jnp.array([[0.5, 1.0], [0.25, 1.0]])
    for on, expected in (([True, True], 110.5), ([False, True], 100.25), ([False, False], 1.0)):
        assert symmetrise(grads, ties, jnp.array(on), weights)["a"].tolist() == [expected, expected]


def test_gradients_keep_their_dtype():
    grads = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)}
    found = symmetrise(grads, [Tie("a", "b")], True, jnp.array([[0.5, 0.25]], jnp.float32))
    assert {leaf.dtype for leaf in found.values()} == {jnp.dtype(jnp.bfloat16)}
    assert found["b"].tolist() == [0.75, 0.75]


def test_equal_weights_of_one_source_may_be_different_objects():
    ties = [Tie("a", name, gradient=(np.array([0.5, 1.0]), 1.0)) for name in "bc"]
    assert store({name: jnp.ones(2) for name in "abc"}, ties)["c"] is None


@pytest.mark.parametrize(
    ("ties", "words"),
    [
        ([Tie("a", "b", gradient=(1.0, 0.5)), Tie("b", "c")], "ties in a chain cannot have gradient weights"),
        (
            [Tie("a", "b", gradient=(1.0, 0.5)), Tie("a", "c", gradient=(0.5, 0.5))],
            "weights the use of a differently; give both ties the same weight",
        ),
        ([Tie("a", "b", gradient=(np.ones((3, 1)), 1.0))], r"weights of shape \(3, 1\) do not broadcast to a \(2,\)"),
    ],
)
def test_ambiguous_weights_are_rejected(ties, words):
    with pytest.raises(TieError, match=words):
        store({name: jnp.ones(2) for name in "abc"}, ties)


def test_weights_do_not_change_with_an_array_of_numpy():
    weight = np.array(0.5)
    tie = Tie("a", "b", gradient=(1.0, weight))
    weight[...] = 2.0
    grads = jax.grad(lambda stored: jnp.sum(view(stored, tie)["b"]))({"a": jnp.ones(2), "b": None})
    np.testing.assert_array_equal(grads["a"], [0.5, 0.5])
