"""Any optax optimizer with learning rates that belong to its state, so that one program trains members with different ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

WARM_UP, DECAY = 0.02, 0.2  # shares of the run in which the learning rate rises and falls
Schedule = Callable[[jax.Array, int], Any]  # (step, steps) -> factor of the learning rate


class OwnRates(NamedTuple):
    """State of an optimizer with learning rates of its own.

    rates: `[number]`. gradient_step: number of updates so far. inner: the state of the optimizer.
    """

    rates: jax.Array
    gradient_step: jax.Array
    inner: Any


def warm_up_constant_decay(step: jax.Array, steps: int) -> jax.Array:
    """Return the factor of the learning rate: it rises in the first 2 % of the steps, and falls linearly to 0 in the last 20 %.

    In between it is 1, so that ties that end there do so at the full rate.
    """
    rise, fall = max(1, round(WARM_UP * steps)), max(1, round(DECAY * steps))
    return jnp.minimum(jnp.minimum(1.0, (step + 1) / rise), jnp.clip((steps - step) / fall, 0, 1))


def with_own_rates(
    make: Callable[..., optax.GradientTransformation], number: int, schedule: Schedule, steps: int
) -> optax.GradientTransformation:
    """Return the optimizer that `make` returns for `number` traced learning rates, each times a schedule, as part of its state.

    steps: of the run, for the schedule.
    """

    def at(rates: jax.Array, step: jax.Array) -> optax.GradientTransformation:
        factor = jnp.asarray(schedule(step, steps), jnp.float32)
        return make(*(rates[place] * factor for place in range(number)))

    def init(params: optax.Params) -> OwnRates:
        rates, step = jnp.ones(number, jnp.float32), jnp.int32(0)
        return OwnRates(rates, step, at(rates, step).init(params))

    def update(updates: optax.Updates, state: OwnRates, params: optax.Params | None = None) -> tuple[optax.Updates, OwnRates]:
        updates, inner = at(state.rates, state.gradient_step).update(updates, state.inner, params)
        return updates, OwnRates(state.rates, state.gradient_step + 1, inner)

    return optax.GradientTransformation(init, update)
