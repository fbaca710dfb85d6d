"""The schedule of learning rates of a comparison."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

WARM_UP, DECAY = 0.02, 0.2  # shares of the run in which the learning rate rises and falls
Schedule = Callable[[jax.Array, int], Any]  # (step, steps) -> factor of the learning rate


def warm_up_constant_decay(step: jax.Array, steps: int) -> jax.Array:
    """Return the factor of the learning rate: it rises in the first 2 % of the steps, and falls linearly to 0 in the last 20 %.

    In between it is 1, so that ties that end there do so at the full rate.
    """
    rise, fall = max(1, round(WARM_UP * steps)), max(1, round(DECAY * steps))
    return jnp.minimum(jnp.minimum(1.0, (step + 1) / rise), jnp.clip((steps - step) / fall, 0, 1))
