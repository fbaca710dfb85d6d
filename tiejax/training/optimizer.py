"""Optimizers and learning-rate schedules of the published protocols, built from optax."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax.training.choices import OptimizerName, ScheduleName
from tiejax.tying.leaves import NNX_SUFFIX
from tiejax.tying.switched import global_norm

BETAS = (0.9, 0.999)  # Adam's, in all published protocols implemented here


class TableRecipe(NamedTuple):
    """How embedding tables are updated where it differs from other parameters.

    paths: of the tables in the parameter tree, such as `embed/embedding`. weight_decay: factor of their decay; None for that of
    all parameters. rate: factor of their learning rate. shared_second_moment: average Adam's second moment over the rows of a
    table (`share_second_moment`).
    """

    paths: Sequence[str]
    weight_decay: float | None = None
    rate: float = 1.0
    shared_second_moment: bool = False


def make_optimizer(
    kind: OptimizerName,
    schedule: optax.ScalarOrSchedule,
    weight_decay: float,
    betas: tuple[float, float] = BETAS,
    eps: float = 1e-12,
    counts: Literal["all", "leaf"] = "all",
    decayed: Literal["all", "matrices"] = "all",
    tables: TableRecipe | None = None,
) -> optax.GradientTransformation:
    """Return AdamW, or Adam with L2 regularisation, as in torch.

    * `adamw`: p -= lr (m / (sqrt(v) + eps) + weight_decay p), with bias-corrected moments m, v of the gradient g
    * `adam`: p -= lr m / (sqrt(v) + eps), with bias-corrected moments m, v of g + weight_decay p

    Args:
        kind: name of the optimizer.
        schedule: step -> learning rate lr; the first update uses schedule(0). Or a constant rate, which may be traced.
        weight_decay: factor of the decay.
        betas: decay rates of the moments m and v.
        eps: added to the square root.
        counts: `all`: one step count for the bias correction of all leaves, as in optax; `leaf`: one per leaf, which
            `tying.untie` can restart for a leaf that leaves a tie. Both give the same updates until then.
        decayed: decay `all` parameters, or only `matrices`, which excludes biases and LayerNorms, as in BERT, by their names:
            `bias`, `scale`, `b`, `offset`, and all that end in `_bias`.
        tables: other decay, rate or second moment of embedding tables.
    """
    check_choice("kind", kind, get_args(OptimizerName))
    check_choice("counts", counts, ("all", "leaf"))
    check_choice("decayed", decayed, ("all", "matrices"))
    b1, b2 = betas
    scale = optax.scale_by_adam(b1, b2, eps) if counts == "all" else scale_by_adam_per_leaf(b1, b2, eps)
    decay = optax.add_decayed_weights(weight_decay, None if decayed == "all" else matrices)
    rate = optax.scale_by_learning_rate(schedule)
    if tables is not None and tables.shared_second_moment:
        scale = share_second_moment(scale, tables.paths, betas, eps)
    if tables is not None and tables.weight_decay is not None:
        decay = optax.chain(
            optax.masked(decay, lambda params: jax.tree.map(operator.not_, leaves_at(params, tables.paths))),
            optax.add_decayed_weights(tables.weight_decay, lambda params: leaves_at(params, tables.paths)),
        )
    if tables is not None and tables.rate != 1:
        rate = optax.chain(rate, optax.masked(optax.scale(tables.rate), lambda params: leaves_at(params, tables.paths)))
    chain = optax.chain(scale, decay, rate) if kind == "adamw" else optax.chain(decay, scale, rate)
    return chain if tables is None else _with_tables(chain, tables.paths)


def _with_tables(optimizer: optax.GradientTransformation, paths: Sequence[str]) -> optax.GradientTransformation:
    """Return the optimizer; its `init` raises ValueError if no leaf has one of the paths."""

    def init(params: optax.Params) -> optax.OptState:
        if not any(jax.tree.leaves(leaves_at(params, paths))):
            raise ValueError(f"tables: no leaf of the parameters has one of the paths {', '.join(paths)}")
        return optimizer.init(params)

    return optax.GradientTransformation(init, optimizer.update)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ValueError unless a value is one of the choices of an argument."""
    if value not in choices:
        raise ValueError(f"{name}: expected {' or '.join(choices)}, got {value!r}")


def clip_as_torch(max_norm: float) -> optax.GradientTransformation:
    """Return clipping by the global norm as in torch: g -> g min(1, max_norm / (|g| + 1e-6)).

    Source: torch.nn.utils.clip_grad_norm_. `optax.clip_by_global_norm` does not add 1e-6.
    """

    def update(updates: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None) -> tuple[Any, Any]:
        scale = jnp.minimum(1, max_norm / (global_norm(updates, (), True) + 1e-6))
        return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def matrices(params: optax.Params) -> optax.Params:
    """Return for each leaf whether it is a matrix, judged by its name, since biases of stacked layers have two axes too.

    No matrices are `bias`, `scale`, their names in Haiku (`b`, `offset`), and all names that end in `_bias`.
    """

    def is_matrix(path: Any, leaf: Any) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/").removesuffix(NNX_SUFFIX).rpartition("/")[2]
        return name not in ("bias", "scale", "b", "offset") and not name.endswith("_bias")

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def leaves_at(tree: Any, paths: Sequence[str]) -> Any:
    """Return for each leaf whether its path, with or without the `/value` of a variable of NNX, is one of `paths`."""

    def is_at(path: Any, leaf: Any) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return name in paths or name.removesuffix(NNX_SUFFIX) in paths

    return jax.tree_util.tree_map_with_path(is_at, tree)


def share_second_moment(
    adam: optax.GradientTransformation, paths: Sequence[str], betas: tuple[float, float], eps: float
) -> optax.GradientTransformation:
    r"""Return Adam with a second moment that the rows of a table share (Coupled Adam).

        u_i = m_i / (sqrt(mean_j v_j) + eps),    with bias-corrected moments m_i, v_i of row i

    Rows that rarely have a gradient thus take no larger steps than others. The state is that of `adam`: `optax.scale_by_adam`
    or `scale_by_adam_per_leaf`, with these betas and eps. paths: paths of the tables, `[rows, width]`.

    Source: F. Stollenwerk and T. Stollenwerk, "Better Embeddings with Coupled Adam", ACL 2025 (arXiv:2502.08441).
    """
    b1, b2 = betas

    def update(grads: optax.Updates, state: Any, params: optax.Params | None = None) -> tuple[optax.Updates, Any]:
        updates, state = adam.update(grads, state, params)
        shared_count = isinstance(state.count, jax.Array | np.ndarray)
        counts = jax.tree.map(lambda leaf: state.count, state.mu) if shared_count else state.count

        def shared(update: jax.Array, here: bool, m: jax.Array, v: jax.Array, count: jax.Array) -> jax.Array:
            if not here:
                return update
            mean = jnp.mean(v, axis=0, keepdims=True) / (1 - b2**count)
            return m / (1 - b1**count) / (jnp.sqrt(mean) + eps)

        return jax.tree.map(shared, updates, leaves_at(updates, paths), state.mu, state.nu, counts), state

    return optax.GradientTransformation(adam.init, update)


class OwnRates(NamedTuple):
    """State of an optimizer with learning rates of its own.

    rates: `[number]`. gradient_step: number of updates so far. inner: the state of the optimizer.
    """

    rates: jax.Array
    gradient_step: jax.Array
    inner: Any


def with_own_rates(
    make: Callable[..., optax.GradientTransformation], number: int, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Return the optimizer that `make` returns for `number` traced learning rates, each times a schedule, as part of its state.

    Members of an ensemble, which share one program, thus train at different rates: `state._replace(rates=...)`.
    """

    def at(rates: jax.Array, step: jax.Array) -> optax.GradientTransformation:
        factor = jnp.asarray(schedule(step), jnp.float32)
        return make(*(rates[place] * factor for place in range(number)))

    def init(params: optax.Params) -> OwnRates:
        rates, step = jnp.ones(number, jnp.float32), jnp.int32(0)
        return OwnRates(rates, step, at(rates, step).init(params))

    def update(updates: optax.Updates, state: OwnRates, params: optax.Params | None = None) -> tuple[optax.Updates, OwnRates]:
        updates, inner = at(state.rates, state.gradient_step).update(updates, state.inner, params)
        return updates, OwnRates(state.rates, state.gradient_step + 1, inner)

    return optax.GradientTransformation(init, update)


def scale_by_adam_per_leaf(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Return `optax.scale_by_adam` with a separate step count, and so a separate bias correction, for each leaf.

    The state is that of optax, except that `count` is a tree like `mu` and `nu`.
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
        parts_by_field = zip(*(leaf_state for _, leaf_state in results), strict=True)
        return updates, optax.ScaleByAdamState(*(jax.tree.unflatten(treedef, part) for part in parts_by_field))

    return optax.GradientTransformation(init, update)


def cosine_cycle(maximum: float, minimum: float, half_period: int) -> optax.Schedule:
    """Return lr(t) = minimum + (maximum - minimum) / 2 (1 + cos(pi t / half_period)), for all t.

    The rate reaches the minimum after `half_period` steps and the maximum again after 2 `half_period`, as in torch's
    CosineAnnealingLR. t is first reduced modulo the period: in float32, cos(pi t / half_period) of a large t is off by 6e-5.
    """

    def schedule(step: jax.Array) -> jax.Array:
        phase = jnp.pi * (step % (2 * half_period)) / half_period
        return minimum + (maximum - minimum) / 2 * (1 + jnp.cos(phase))

    return schedule


def warm_up_and_decay(maximum: float, warm_up: int, steps: int) -> optax.Schedule:
    """Return a schedule that rises linearly from 0 to `maximum` over `warm_up` steps, then falls linearly to 0 at `steps`.

    lr(t) = maximum t / warm_up for t <= warm_up, maximum (steps - t) / (steps - warm_up) after. Source: BERT (Devlin et al.,
    2019); also used for RemBERT (Chung et al., ICLR 2021, table 14), which names no other.
    """
    return warmed_up(maximum, warm_up, optax.linear_schedule(maximum, 0, steps - warm_up))


def warmed_up(maximum: float, warm_up: int, rest: optax.Schedule) -> optax.Schedule:
    """Return a schedule that rises linearly from 0 to `maximum` over `warm_up` steps, then follows `rest` from its start."""
    return optax.join_schedules([optax.linear_schedule(0, maximum, warm_up), rest], [warm_up]) if warm_up else rest


def make_schedule(kind: ScheduleName, maximum: int | float, minimum: int | float, half_period: int) -> optax.Schedule:
    """Return the schedule named `kind`.

    Args:
        kind: name of the schedule.
        maximum: largest learning rate of `cosine`, and the rate of `constant`.
        minimum: smallest learning rate of `cosine`.
        half_period: number of steps from the largest to the smallest rate of `cosine`.
    """
    check_choice("kind", kind, get_args(ScheduleName))
    if kind == "constant":
        return optax.constant_schedule(maximum)
    if half_period < 1:
        raise ValueError(f"half_period: expected at least 1 step, got {half_period}")
    return cosine_cycle(maximum, minimum, half_period)
