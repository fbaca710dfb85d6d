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


def warm_up_and_decay(maximum: float, warm_up: int, steps: int) -> optax.Schedule:
    """Return the schedule that rises linearly from 0 to `maximum` over `warm_up` steps and falls linearly to 0 at `steps`.

    lr(t) = maximum t / warm_up up to warm_up, maximum (steps - t) / (steps - warm_up) from there. Source: BERT (Devlin et al.,
    2019), which RemBERT (Chung et al., ICLR 2021, table 14) follows where it says nothing else.
    """
    rise, fall = optax.linear_schedule(0, maximum, warm_up), optax.linear_schedule(maximum, 0, steps - warm_up)
    return optax.join_schedules([rise, fall], [warm_up]) if warm_up else fall


def make_schedule(
    kind: Literal["cosine", "constant"], maximum: int | float, minimum: int | float, half_period: int
) -> optax.Schedule:
    """Return the `cosine_cycle` of these rates, or the `constant` one at the maximum."""
    return cosine_cycle(maximum, minimum, half_period) if kind == "cosine" else constant(maximum)
