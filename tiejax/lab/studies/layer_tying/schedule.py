"""The learning rate of every step of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.training.optimizer import warmed_up


def rates_of(settings: Settings, rate: float) -> np.ndarray:
    """Return the learning rate of every step, float32 `[steps]`.

    It rises linearly from 0 in the first `warm_up` steps, then stays at `rate` or, with the schedule `cosine`, falls to 0 at
    the end as rate / 2 (1 + cos(pi x)), where x is the share of the remaining steps that is done.
    """
    assert settings.steps is not None
    rest = optax.constant_schedule(rate)
    if settings.schedule == "cosine":
        rest = optax.cosine_decay_schedule(rate, settings.steps - settings.warm_up)
    schedule = warmed_up(rate, settings.warm_up, rest)
    # A constant schedule returns a number of Python.
    return np.asarray(jax.vmap(lambda step: jnp.asarray(schedule(step)))(jnp.arange(settings.steps)), np.float32)
