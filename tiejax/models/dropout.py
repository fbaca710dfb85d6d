"""Dropout with 16 random bits per value; on a CPU drawing the bits dominates its cost, and 32 would take twice as long."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

LEVELS = 2**16


def drop_probability(rate: float) -> float:
    """Return the probability used for a rate: the nearest multiple of 2^-16 below 1."""
    return min(round(rate * LEVELS), LEVELS - 1) / LEVELS


def keep_mask(key: Key[Array, ""], rate: float, shape: tuple[int, ...]) -> Bool[Array, "*shape"]:
    """Return a random mask that is true for the values to keep, each with probability 1 - `drop_probability(rate)`."""
    return jax.random.bits(key, shape, jnp.uint16) >= round(drop_probability(rate) * LEVELS)


class Dropout(nn.Module):
    """Dropout with the random stream `dropout`: y = x / (1 - rate) where x is kept, else 0; y = x if deterministic."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"], deterministic: bool) -> Float[Array, "*shape"]:
        if deterministic or self.rate == 0:
            return x
        keep = keep_mask(self.make_rng("dropout"), self.rate, x.shape)
        return jnp.where(keep, x * (1 / (1 - drop_probability(self.rate))), 0).astype(x.dtype)
