"""Schedules against their formulae."""

import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.training import constant, cosine_cycle
from tiejax.training.schedule import warm_up_and_decay


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


def test_warm_up_and_decay_are_linear():
    schedule = warm_up_and_decay(2.0, 4, 12)
    expected = [0, 0.5, 1.0, 1.5, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25, 0.0]
    np.testing.assert_allclose([schedule(step) for step in range(13)], expected, rtol=1e-6)
    np.testing.assert_allclose([warm_up_and_decay(2.0, 0, 4)(step) for step in range(5)], [2, 1.5, 1, 0.5, 0], rtol=1e-6)
