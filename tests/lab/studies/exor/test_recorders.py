"""Recorders of EXor's members. Oracle: the tied gradient, which is the sum of the gradients of both uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import tying
from tiejax.lab.studies.exor.ensemble import build_ensemble
from tiejax.lab.studies.exor.settings import Settings
from tiejax.training import seed_keys


@pytest.mark.slow
def test_recorded_uses_sum_to_the_gradient_of_a_tied_table(x64):
    """Tied members at step 0: norms of both uses, and the norm of their sum by the law of cosines."""
    settings = Settings(seeds=2, steps=1, bits=3, record_every=1, engine="plain").resolved()
    ensemble = build_ensemble(settings)
    members, keys = ensemble.start([0, 1]), seed_keys([0, 1])
    recorded = jax.jit(lambda: ensemble.measure("record", keys, members.state, jnp.int32(0)))()
    params = jax.tree.map(lambda leaf: leaf[0, 1], members.state.params)
    stored = tying.store(params, ensemble.ties)
    batch = jax.jit(ensemble.sample)(jax.tree.map(lambda leaf: leaf[0], keys), jnp.int32(0), None)
    tied = jax.jit(jax.grad(lambda stored: ensemble.loss(tying.view(stored, ensemble.ties), batch, None)[0]))(stored)
    a, b, cosine = (float(recorded[f"use_{name}"][0, 1]) for name in ("input", "output", "cosine"))
    total = np.linalg.norm(tied["embed"]["embedding"])
    np.testing.assert_allclose(total, np.sqrt(a**2 + b**2 + 2 * a * b * cosine), rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(recorded["use_bucket_input"][0, 1]), a, rtol=1e-9)
