"""Optimizers against the equations, by hand in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.training import make_optimizer
from tiejax.training.optimizer import clip_as_torch, with_rates


@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_optimizers_against_the_equations(x64, kind):
    """Three steps by hand, with a schedule that changes: the first update uses schedule(0)."""
    rates, decay, eps, (b1, b2) = [0.1, 0.05, 0.01], 0.1, 1e-12, (0.9, 0.999)
    optimizer = make_optimizer(kind, lambda step: jnp.asarray(rates)[step], decay, eps=eps)
    p = np.array([1.0, -2.0, 0.5])
    params, opt_state = jnp.asarray(p), optimizer.init(jnp.asarray(p))
    m = v = np.zeros(3)
    for t, rate in enumerate(rates, start=1):
        g = np.array([0.3, -1.0, 2.0]) * t
        updates, opt_state = optimizer.update(jnp.asarray(g), opt_state, params)
        params = optax.apply_updates(params, updates)
        if kind == "adam":
            g = g + decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        direction = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        p = p - rate * (direction + (decay * p if kind == "adamw" else 0))
    np.testing.assert_allclose(params, p, rtol=1e-12)


@pytest.mark.parametrize(("max_norm", "scale"), [(2.5, 2.5 / (5 + 1e-6)), (5.0, 5 / (5 + 1e-6)), (5.1, 1.0)])
def test_clipping_as_torch_divides_by_the_norm_and_a_millionth(x64, max_norm, scale):
    grads = {"a": jnp.array([3.0]), "b": jnp.array([[0.0], [4.0]])}  # of norm 5
    clipped, _ = clip_as_torch(max_norm).update(grads, optax.EmptyState())
    np.testing.assert_allclose(clipped["a"], [3 * scale], rtol=1e-14)
    np.testing.assert_allclose(clipped["b"], [[0], [4 * scale]], rtol=1e-14)


def test_decay_of_matrices_alone_leaves_biases_and_norms(x64):
    """Without gradients, what decays shrinks by rate x decay; stacked biases are matrices by their shape alone."""
    params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones((3, 2))}, "norm": {"scale": jnp.ones((3, 2))}}
    optimizer = make_optimizer("adamw", optax.constant_schedule(0.5), 0.1, decayed="matrices")
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert float(updates["dense"]["kernel"][0, 0]) == pytest.approx(-0.05)
    assert not np.any(updates["dense"]["bias"])
    assert not np.any(updates["norm"]["scale"])


def test_members_have_rates_of_their_own(x64):
    """Factors 1 and 3 on a schedule of 1, .5: as two optimizers with these rates."""
    schedule, gradient = lambda step: jnp.asarray([1.0, 0.5])[step], {"kernel": jnp.array([0.2, -0.4])}
    params = {"kernel": jnp.array([1.0, 2.0])}
    optimizer = make_optimizer("adamw", schedule, 0.1, own_rates=True)
    for factor in (1.0, 3.0):
        ours, plain = params, params
        reference = make_optimizer("adamw", lambda step, factor=factor: factor * schedule(step), 0.1)
        state, state_of_plain = with_rates(optimizer.init(params), jnp.asarray(factor)), reference.init(params)
        for _ in range(2):
            updates, state = optimizer.update(gradient, state, ours)
            ours = optax.apply_updates(ours, updates)
            updates, state_of_plain = reference.update(gradient, state_of_plain, plain)
            plain = optax.apply_updates(plain, updates)
        np.testing.assert_allclose(ours["kernel"], plain["kernel"], rtol=1e-7)
