"""Schedules against their formulae."""

import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.training import constant, cosine_cycle


@pytest.mark.parametrize("step", [0, 1, 3_333, 10_000, 15_000, 20_000, 149_999, 499_999])
def test_cosine_cycle_is_never_clamped(x64, step):
    expected = 1e-5 + (5e-4 - 1e-5) / 2 * (1 + np.cos(np.pi * step / 10_000))
    np.testing.assert_allclose(cosine_cycle(5e-4, 1e-5, 10_000)(jnp.int32(step)), expected, rtol=1e-9)


def test_cosine_cycle_keeps_its_digits_in_float32():
    """At a large step, cos(pi t / 10,000) computed from t itself would be off by 6e-5 of the range."""
    step = 489_500
    expected = 1e-5 + (5e-4 - 1e-5) / 2 * (1 + np.cos(np.pi * (step % 20_000) / 10_000))
    np.testing.assert_allclose(cosine_cycle(5e-4, 1e-5, 10_000)(jnp.int32(step)), expected, rtol=1e-6)


def test_constant_schedule():
    assert constant(0.25)(jnp.int32(12_345)) == 0.25
