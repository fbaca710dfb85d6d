"""Optimizers and learning-rate schedules of the published protocol, from optax."""

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


def make_optimizer(
    kind: Literal["adamw", "adam"],
    schedule: optax.Schedule,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-12,
) -> optax.GradientTransformation:
    """Return AdamW (decoupled decay), or Adam with the decay added to the gradient, both in torch's form.

    adamw: p -= lr (m / (sqrt(v) + eps) + weight_decay p), m and v bias-corrected moments of the gradient g;
    adam:  p -= lr m / (sqrt(v) + eps), moments of g + weight_decay p.
    Decay acts on every parameter. The first update uses schedule(0).
    """
    b1, b2 = betas
    if kind == "adamw":
        return optax.adamw(schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(schedule, b1=b1, b2=b2, eps=eps))
