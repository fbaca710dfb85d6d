"""One training step as a pure function, and the precision of its matrix products."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import optax

from tiejax import tying
from tiejax.training.choices import Precision

PyTree = Any
Loss = Callable[[PyTree, Any, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
Step = Callable[..., tuple["TrainState", dict[str, jax.Array]]]


class TrainState(NamedTuple):
    """The parameters and optimizer state of a member; steps are counted by the optimizer.

    Attributes:
        params: all parameters; both leaves of a tie are stored.
        opt_state: the optimizer's state.
        use_states: optimizer states of the gradients of each use (`tying.only_tied`), for ties that end with policy `split`;
            None otherwise.
    """

    params: PyTree
    opt_state: optax.OptState
    use_states: PyTree = None


def check_norm(max_norm: Any) -> None:
    """Raise ValueError if a limit of the norm is known and clips everything."""
    if max_norm is not None and not isinstance(max_norm, jax.core.Tracer) and not max_norm > 0:
        raise ValueError(f"max_norm: expected a number > 0, or None to clip nothing, got {max_norm}")


def make_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    ties: tying.TiesLike = (),
    max_norm: float | None = None,
    squares: Callable[[PyTree], PyTree] = tying.leaf_squares,
) -> Step:
    """Return a training step for parameters with switched ties (both leaves of a tie are stored).

    A tie that is never switched off is cheaper to store once: pass `view(stored, ties)` to the loss, and no `ties` here.

    Args:
        loss: (params, batch, key) -> (loss, metrics).
        optimizer: any optax transformation.
        ties: the tie or ties that `on` switches.
        max_norm: clip gradients to this global norm, in which a tied pair counts once; None does not clip.
        squares: as in `tying.global_norm`.

    Returns:
        (state, batch, key, on, gradient_weights=None) -> (state, metrics). on: booleans `[tie]`. gradient_weights: as in
        `tying.symmetrise`. The step raises tying.TieError if the optimizer looks across leaves, as a clipped global norm does,
        and so would count a tied pair twice (`tying.check_leafwise`); use `max_norm`.
    """

    check_norm(max_norm)

    def step(
        state: TrainState, batch: Any, key: jax.Array, on: Any, gradient_weights: Any = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        tying.check_leafwise(optimizer, state.params, ties)
        (_, metrics), use_grads = jax.value_and_grad(loss, has_aux=True)(state.params, batch, key)
        grads, use_states = tying.symmetrise(use_grads, ties, on, gradient_weights), state.use_states
        if max_norm is not None:
            scale = tying.clip_scale(grads, ties, on, max_norm, squares)
            use_grads, grads = (jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), tree) for tree in (use_grads, grads))
        if use_states is not None:
            _, use_states = optimizer.update(tying.only_tied(use_grads, ties), use_states, tying.only_tied(state.params, ties))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        if ties:
            params = tying.copy_to_targets(params, params, ties, on)
            opt_state = tying.copy_to_targets(opt_state, params, ties, on)
        return TrainState(params, opt_state, use_states), metrics

    return step


def products_in(precision: Precision) -> AbstractContextManager[None]:
    """Return a context in which float32 matrix products are traced with this precision; accelerators default to fewer bits.

    Products of bfloat16 are not affected. The names are those of jax, except `bfloat16`, which jax treats as `default`, and
    which here means the same on every device that supports it.
    """
    name = "BF16_BF16_F32" if precision == "bfloat16" else precision
    context: AbstractContextManager[None] = jax.default_matmul_precision(name)
    return context
