"""The LSTM's recurrence and its derivative, against its equations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models.lstm import recurrence

LENGTH, FEATURES, HIDDEN, BATCH = 6, 3, 5, 4


def by_equations(x, weights):
    """The equations, one direction and one step at a time, differentiated automatically."""
    all_states = []
    for direction, matrix in enumerate(weights):
        from_x, from_h, bias = jnp.split(matrix, [FEATURES, FEATURES + HIDDEN], axis=1)
        h = c = jnp.zeros((HIDDEN, x.shape[-1]))
        states = []
        for x_t in x[:, direction]:
            i, f, g, o = (from_x @ x_t + from_h @ h + bias).reshape(4, HIDDEN, -1)
            c = c / (1 + jnp.exp(-f)) + jnp.tanh(g) / (1 + jnp.exp(-i))
            h = jnp.tanh(c) / (1 + jnp.exp(-o))
            states.append(h)
        all_states.append(jnp.stack(states))
    return jnp.stack(all_states, axis=1)


def arrays(directions, *members, length=LENGTH):
    keys = jax.random.split(jax.random.key(3), 3)
    return (
        jax.random.normal(keys[0], (*members, length, directions, FEATURES, BATCH)),
        jax.random.normal(keys[1], (*members, directions, 4 * HIDDEN, FEATURES + HIDDEN + 1)),
        jax.random.normal(keys[2], (*members, length, directions, HIDDEN, BATCH)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize(("directions", "length"), [(1, LENGTH), (2, LENGTH), (2, 1)])
def test_states_and_gradients_match_the_equations(directions, length, unrolled):
    with jax.enable_x64(True):
        x, weights, seen = arrays(directions, length=length)
        values, back = jax.vjp(functools.partial(recurrence, unrolled=unrolled), x, weights)
        expected, expected_back = jax.vjp(by_equations, x, weights)
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-14)
        for gradient, right in zip(back(seen), expected_back(seen), strict=True):
            np.testing.assert_allclose(gradient, right, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_vmap_does_not_change_results():
    with jax.enable_x64(True):
        x, weights, seen = arrays(2, 3)
        together = jax.vmap(lambda *leaves: jax.vjp(recurrence, *leaves[:2])[1](leaves[2]))(x, weights, seen)
        for member in range(3):
            alone = jax.vjp(by_equations, x[member], weights[member])[1](seen[member])
            for gradients, right in zip(together, alone, strict=True):
                np.testing.assert_allclose(gradients[member], right, rtol=0, atol=1e-13)
