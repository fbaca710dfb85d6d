"""Ties that last: each distinct array is stored once, and the model's full tree is a view of it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path, resolve
from tiejax.tying.weighted import weighted


def store(params: PyTree, ties: Sequence[Tie]) -> PyTree:
    """Keep each distinct array once: the full tree with `None` in place of every tie's target.

    jax.tree, optax and orbax carry the `None` along, so gradients and optimizer state exist once as well.
    Raises TieError as `resolve` does.
    """
    leaves, treedef = leaves_by_path(params)
    for tie in resolve(ties, params):
        leaves[tie.target] = None
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def view(stored: PyTree, ties: Sequence[Tie]) -> PyTree:
    """Give the model its full tree: every target reads its source through the tie's transform.

    Call it inside the loss. The gradient with respect to `stored` is then the sum over all uses of each array,
    dL/dW = dL/dW_source + T(dL/dW_target); with `gradient="owner"` the target's use is left out of the sum, and with weights
    (a, b) it is a dL/dW_source + b T(dL/dW_target).
    Raises TieError as `resolve` does, and if a target still holds an array of its own.
    """
    leaves, treedef = leaves_by_path(stored)
    own = {}
    for tie in resolve(ties, stored):
        if leaves[tie.target] is not None:
            raise TieError(f"{tie}: {tie.target} holds an array of its own; view() takes what store() returned")
        leaves[tie.target] = apply_transform(tie, _sending(leaves[tie.source], tie.weights[1]))
        own[tie.source] = _sending(leaves[tie.source], tie.weights[0])
    leaves |= own
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def _sending(x: Any, weight: Any) -> Any:
    """Return an array that sends back its gradient so many times."""
    if isinstance(weight, int | float) and weight in (0, 1):
        return x if weight else jax.lax.stop_gradient(x)
    return weighted(x, weight)


def tied_loss(loss: Callable[..., Any], ties: Sequence[Tie]) -> Callable[..., Any]:
    """Return a loss of stored parameters from one of full parameters: stored, ... -> loss(view(stored, ties), ...)."""

    @functools.wraps(loss)
    def of_stored(stored: PyTree, *args: Any, **kwargs: Any) -> Any:
        return loss(view(stored, ties), *args, **kwargs)

    return of_stored


def equal_leaves(params: PyTree, ties: Sequence[Tie]) -> dict[str, bool]:
    """Say of each tie's target whether its array equals its source bit for bit: tied in fact, whatever a flag says."""
    leaves, _ = leaves_by_path(params)
    return {
        tie.target: np.asarray(apply_transform(tie, leaves[tie.source])).tobytes() == np.asarray(leaves[tie.target]).tobytes()
        for tie in resolve(ties, params)
    }
