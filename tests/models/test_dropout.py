"""Dropout: rate, scale, and when it is off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models.layers import Dropout, drop_probability, keep_mask


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_dropped_entries(rate):
    number = 400_000
    share = 1 - np.asarray(keep_mask(jax.random.key(0), rate, (number,))).mean()
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / number) + 2**-17


def test_remaining_entries_are_scaled_to_preserve_the_mean():
    x = jnp.full((1000, 200), 3.0)
    y = np.asarray(Dropout(0.25).apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(1)}))
    assert set(np.unique(y)) == {0.0, 4.0}
    assert y.mean() == pytest.approx(3, rel=0.01)
    other = Dropout(0.25).apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(2)})
    assert (y != other).any()


@pytest.mark.parametrize(("rate", "deterministic"), [(0.0, False), (0.5, True)])
def test_no_dropout_needs_no_key(rate, deterministic):
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(Dropout(rate).apply({}, x, deterministic=deterministic), x)


def test_half_precision_keeps_its_dtype():
    x = jnp.ones(64, jnp.bfloat16)
    y = Dropout(0.5).apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(0)})
    assert y.dtype == jnp.bfloat16


def test_rates_are_rounded_to_16_bits_and_stay_below_one():
    assert drop_probability(0.5) == 0.5
    assert abs(drop_probability(0.1) - 0.1) <= 2**-17
    assert drop_probability(0.9999999) == 1 - 2**-16
