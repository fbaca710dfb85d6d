"""One training step: a pure function of state, batch, key and switches."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import optax

from tiejax import tying

PyTree = Any
Loss = Callable[[PyTree, Any, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
Step = Callable[..., tuple["TrainState", dict[str, jax.Array]]]


class TrainState(NamedTuple):
    """Parameters and optimizer state. The optimizer counts the steps.

    use_states: the optimizer's state of each use's own gradients (`tying.only_tied`), where a tie that ends asks for it.
    """

    params: PyTree
    opt_state: optax.OptState
    use_states: PyTree = None


def make_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    ties: Sequence[tying.Tie] = (),
    max_norm: float | None = None,
    squares: Callable[[PyTree], PyTree] = tying.leaf_squares,
) -> Step:
    """Return (state, batch, key, on, gradient_weights) -> (state, metrics), for parameters in full, ties switched by `on`.

    gradient_weights: as of `tying.symmetrise`; may be left out.
    A tie that is never switched off is cheaper stored once: give the loss `view(stored, ties)` and no ties here.
    max_norm: clip gradients to this global norm, a tied pair counted once; squares: as of `tying.global_norm`.
    """

    def step(
        state: TrainState, batch: Any, key: jax.Array, on: Any, gradient_weights: Any = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
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
