"""Optimizers of the published protocol, from optax."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax


def make_optimizer(
    kind: Literal["adamw", "adam"],
    schedule: optax.Schedule,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-12,
    counts: Literal["all", "leaf"] = "all",
) -> optax.GradientTransformation:
    """Return AdamW (decoupled decay), or Adam with the decay added to the gradient, both in torch's form.

    adamw: p -= lr (m / (sqrt(v) + eps) + weight_decay p), m and v bias-corrected moments of the gradient g;
    adam:  p -= lr m / (sqrt(v) + eps), moments of g + weight_decay p.
    Decay acts on every parameter. The first update uses schedule(0).
    counts: bias correction by one count for `all` leaves, as optax has it, or a count for each `leaf`, which a leaf that leaves
    a tie can restart (`tying.untie`); until one does, both are the same optimizer.
    """
    b1, b2 = betas
    scale = optax.scale_by_adam(b1, b2, eps) if counts == "all" else scale_by_adam_per_leaf(b1, b2, eps)
    decay, rate = optax.add_decayed_weights(weight_decay), optax.scale_by_learning_rate(schedule)
    return optax.chain(scale, decay, rate) if kind == "adamw" else optax.chain(decay, scale, rate)


def scale_by_adam_per_leaf(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Return optax.scale_by_adam with a step count, and so a bias correction, of its own for each leaf.

    The state is optax's, `count` being a tree as `mu` and `nu` are.
    """
    shared = optax.scale_by_adam(b1, b2, eps)

    def init(params: optax.Params) -> optax.ScaleByAdamState:
        state = shared.init(params)
        return state._replace(count=jax.tree.map(lambda leaf: jnp.zeros((), jnp.int32), params))

    def update(
        grads: optax.Updates, state: optax.ScaleByAdamState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
        leaves, treedef = jax.tree.flatten(grads)
        parts = zip(*(jax.tree.leaves(part) for part in (state.count, state.mu, state.nu)), strict=True)
        results = [shared.update(leaf, optax.ScaleByAdamState(*part)) for leaf, part in zip(leaves, parts, strict=True)]
        updates = jax.tree.unflatten(treedef, [update for update, _ in results])
        kept = zip(*(leaf_state for _, leaf_state in results), strict=True)
        return updates, optax.ScaleByAdamState(*(jax.tree.unflatten(treedef, part) for part in kept))

    return optax.GradientTransformation(init, update)
