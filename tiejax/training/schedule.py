"""Learning-rate schedules of the published protocol."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax


def cosine_cycle(maximum: float, minimum: float, half_period: int) -> optax.Schedule:
    """Return lr(t) = minimum + (maximum - minimum) / 2 (1 + cos(pi t / half_period)), never clamped.

    It is at the minimum after `half_period` steps and rises again to the maximum after twice as many, as torch's
    CosineAnnealingLR does. t is taken modulo the period first, since float32 loses 6e-5 of a large t.
    """

    def schedule(step: jax.Array) -> jax.Array:
        phase = jnp.pi * (step % (2 * half_period)) / half_period
        return minimum + (maximum - minimum) / 2 * (1 + jnp.cos(phase))

    return schedule


def constant(rate: float) -> optax.Schedule:
    """Return the schedule that is `rate` at every step."""
    return optax.constant_schedule(rate)


def make_schedule(
    kind: Literal["cosine", "constant"], maximum: int | float, minimum: int | float, half_period: int
) -> optax.Schedule:
    """Return the `cosine_cycle` of these rates, or the `constant` one at the maximum."""
    return cosine_cycle(maximum, minimum, half_period) if kind == "cosine" else constant(maximum)
