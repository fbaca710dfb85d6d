"""Optimizers against the equations, by hand in numpy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.training import make_optimizer


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
