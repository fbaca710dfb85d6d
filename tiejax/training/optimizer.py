"""Optimizers of the published protocol, from optax."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

BETAS = (0.9, 0.999)  # of Adam, in every published protocol here


def make_optimizer(
    kind: Literal["adamw", "adam"],
    schedule: optax.Schedule,
    weight_decay: float,
    betas: tuple[float, float] = BETAS,
    eps: float = 1e-12,
    counts: Literal["all", "leaf"] = "all",
    decayed: Literal["all", "matrices"] = "all",
    own_rates: bool = False,
) -> optax.GradientTransformation:
    """Return AdamW (decoupled decay), or Adam with the decay added to the gradient, both in torch's form.

    adamw: p -= lr (m / (sqrt(v) + eps) + weight_decay p), m and v bias-corrected moments of the gradient g;
    adam:  p -= lr m / (sqrt(v) + eps), moments of g + weight_decay p.
    decayed: decay acts on `all` parameters, or on `matrices` alone, neither on biases nor on LayerNorms, as BERT's does.
    own_rates: the schedule is multiplied by a factor of each member's own (`with_rates`). The first update uses schedule(0).
    counts: bias correction by one count for `all` leaves, as optax has it, or a count for each `leaf`, which a leaf that leaves
    a tie can restart (`tying.untie`); until one does, both are the same optimizer.
    """
    b1, b2 = betas
    scale = optax.scale_by_adam(b1, b2, eps) if counts == "all" else scale_by_adam_per_leaf(b1, b2, eps)
    decay = optax.add_decayed_weights(weight_decay, None if decayed == "all" else matrices)
    rate = scale_by_own_rate(schedule) if own_rates else optax.scale_by_learning_rate(schedule)
    return optax.chain(scale, decay, rate) if kind == "adamw" else optax.chain(decay, scale, rate)


def clip_as_torch(max_norm: float) -> optax.GradientTransformation:
    """Return clipping by the global norm in torch's form, g -> g min(1, max_norm / (|g| + 1e-6)).

    Source: torch.nn.utils.clip_grad_norm_. optax has no 1e-6.
    """

    def update(updates: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None) -> tuple[Any, Any]:
        scale = jnp.minimum(1, max_norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def matrices(params: optax.Params) -> optax.Params:
    """Say of every leaf whether it is a matrix: by its name, since layers that are stacked add an axis to biases too."""

    def is_matrix(path: tuple[jax.tree_util.DictKey, ...], leaf: jax.Array) -> bool:
        return path[-1].key not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(is_matrix, params)


class OwnRate(NamedTuple):
    """The factor of a member's own on its learning rate, and the steps so far."""

    factor: jax.Array
    steps: jax.Array


def scale_by_own_rate(schedule: optax.Schedule) -> optax.GradientTransformation:
    """Return the transformation u -> -factor schedule(steps) u, whose factor is a number in its state, at first 1.

    So members of one ensemble can have learning rates of their own: see `with_rates`.
    """

    def init(params: optax.Params) -> OwnRate:
        return OwnRate(jnp.float32(1), jnp.int32(0))

    def update(updates: optax.Updates, state: OwnRate, params: optax.Params | None = None) -> tuple[optax.Updates, OwnRate]:
        rate = -state.factor * schedule(state.steps)
        return jax.tree.map(lambda leaf: rate.astype(leaf.dtype) * leaf, updates), state._replace(steps=state.steps + 1)

    return optax.GradientTransformation(init, update)


def with_rates(opt_state: optax.OptState, factors: jax.Array) -> optax.OptState:
    """Return the optimizer state of members `[...]` with these factors `[...]` on their learning rates."""

    def put(part: object) -> object:
        return part._replace(factor=jnp.asarray(factors, jnp.float32)) if isinstance(part, OwnRate) else part

    return jax.tree.map(put, opt_state, is_leaf=lambda part: isinstance(part, OwnRate))


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
