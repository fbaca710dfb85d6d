"""Ties that last: each distinct array is stored once, and the model's full tree is a view of it."""

from collections.abc import Sequence

import jax
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path, resolve


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
    dL/dW = dL/dW_source + T(dL/dW_target); with `gradient="owner"` the target's use is left out of the sum.
    Raises TieError as `resolve` does, and if a target still holds an array of its own.
    """
    leaves, treedef = leaves_by_path(stored)
    for tie in resolve(ties, stored):
        if leaves[tie.target] is not None:
            raise TieError(f"{tie}: {tie.target} holds an array of its own; view() takes what store() returned")
        shared = leaves[tie.source]
        leaves[tie.target] = apply_transform(tie, shared if tie.gradient == "all" else jax.lax.stop_gradient(shared))
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def equal_leaves(params: PyTree, ties: Sequence[Tie]) -> dict[str, bool]:
    """Say of each tie's target whether its array equals its source bit for bit: tied in fact, whatever a flag says."""
    leaves, _ = leaves_by_path(params)
    return {
        tie.target: np.asarray(apply_transform(tie, leaves[tie.source])).tobytes() == np.asarray(leaves[tie.target]).tobytes()
        for tie in resolve(ties, params)
    }
