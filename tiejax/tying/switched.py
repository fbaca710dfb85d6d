r"""Ties that are switched at run time: both leaves are stored, starting equal, and their gradients are made symmetric.

Which form to take: a tie that lasts, for all members alike, is cheaper stored once (`store`, `view`): one array, one optimizer
state. A tie that ends or begins while training runs, or that some members of an ensemble have and others not, is switched: two
arrays, and one traced boolean decides, so that nothing is compiled again.

The gradients of both leaves are `symmetrise`d where the tie is on (`tied_gradient.py`). Leaves that start equal, with equal
optimizer state, then receive equal updates from any element-wise optimizer (AdamW, its decoupled weight decay included) and so
stay equal: this is the tie, at the memory of two leaves. `copy_to_targets` after the update makes the equality independent of
how the two updates were compiled.

Whatever looks across leaves must count a tied pair once: `global_norm` and `clip_by_global_norm` do. (The same clip
inside the optimizer would count it twice.)

`on` is one boolean per resolved tie, or one for all of them.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path, resolve
from tiejax.tying.tied_gradient import Switches, per_tie

Squares = Callable[[PyTree], PyTree]


def copy_to_targets(tree: PyTree, like: PyTree, ties: Sequence[Tie], on: Switches) -> PyTree:
    """Overwrite every target by its source where the tie is on, in each part of `tree` that is built like `like`.

    `tree` may be the parameters or any optax state: moments are found as the subtrees whose structure and paths are those
    of the parameters `like`.
    """
    structure, switched = jax.tree.structure(like), per_tie(on, resolve(ties, like))

    def is_part(part: PyTree) -> bool:
        return bool(jax.tree.structure(part) == structure)  # type: ignore[operator]

    def copy(part: PyTree) -> PyTree:
        if not is_part(part):
            return part
        leaves, treedef = leaves_by_path(part)
        for tie, is_on in switched:
            shared = leaves[tie.source]
            source = apply_transform(tie, shared) if jnp.ndim(shared) else shared  # a step count of a leaf is a number
            leaves[tie.target] = jnp.where(is_on, source, leaves[tie.target])
        return jax.tree_util.tree_unflatten(treedef, leaves.values())

    return jax.tree.map(copy, tree, is_leaf=is_part)


def leaf_squares(grads: PyTree) -> PyTree:
    """Return the sum of the squares of each leaf."""
    return jax.tree.map(lambda leaf: jnp.sum(jnp.square(leaf)), grads)


def global_norm(grads: PyTree, ties: Sequence[Tie], on: Switches, squares: Squares = leaf_squares) -> Float[Array, ""]:
    """Return the Euclidean norm over all leaves of symmetrised gradients, a pair whose tie is on counted once.

    squares: gradients -> the sum of squares of each leaf, where what is here of a leaf is not all of it.
    """
    of_leaves, _ = leaves_by_path(squares(grads))
    counted = {tie.target: ~is_on for tie, is_on in per_tie(on, resolve(ties, grads))}
    terms = [jnp.where(counted.get(path, True), square, 0.0) for path, square in of_leaves.items() if square is not None]
    return jnp.sqrt(sum(terms, start=jnp.zeros(())))


def clip_scale(
    grads: PyTree, ties: Sequence[Tie], on: Switches, max_norm: float, squares: Squares = leaf_squares
) -> Float[Array, ""]:
    """Return min(1, max_norm / norm), the norm being `global_norm`'s of symmetrised gradients."""
    norm = global_norm(grads, ties, on, squares)
    return jnp.where(norm > max_norm, max_norm / norm, 1.0)


def clip_by_global_norm(grads: PyTree, ties: Sequence[Tie], on: Switches, max_norm: float) -> PyTree:
    """Scale symmetrised gradients by `clip_scale`."""
    scale = clip_scale(grads, ties, on, max_norm)
    return jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), grads)
