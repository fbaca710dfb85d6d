r"""Ties that are switched at run time: both leaves are stored, start equal, and receive the same symmetrised gradient.

Which form to use: a permanent tie that all members of an ensemble share is cheaper stored once (`store`, `view`), as one array
with one optimizer state. A tie that ends or begins during training, or that only some members have, must be switched: it has
two arrays, and a traced boolean that turns it on or off without recompilation.

Where a tie is on, both leaves receive the sum of their gradients (`symmetrise`). If they and their optimizer states start
equal, they stay equal under any element-wise optimizer (AdamW and its decoupled weight decay included), at the memory cost of
two leaves; `copy_to_targets` after the update makes that independent of how the two updates were compiled.

Anything computed over all leaves must count a tied pair once, as `global_norm` and `clip_by_global_norm` do. (Clipping by norm
inside the optimizer would count it twice.)

`on` is one boolean per resolved tie, or one for all of them; an array of shape `[ties]` or `[]`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from tiejax.tying.leaves import beside
from tiejax.tying.optimizer_state import check_separate, counterpart, is_lost, owned_leaves, parameter_leaves, shapes_by_path
from tiejax.tying.tie import PyTree, leaves_by_path
from tiejax.tying.tied_gradient import Switches, of_gradients, per_tie, resolved_of_gradients
from tiejax.tying.ties import TiesLike, resolve_full

Squares = Callable[[PyTree], PyTree]


def copy_to_targets(tree: PyTree, like: PyTree, ties: TiesLike, on: Switches) -> PyTree:
    """Overwrite the target of every tie that is on with the transformed array of its source.

    Args:
        tree: Full parameters, or any optax state. In a state, leaves that belong to one parameter (moments, for example) are
            rewritten; there, entries are rearranged as the transform says, but neither scaled nor cast.
        like: Full parameters; only their structure, shapes and dtypes matter.
        ties: A tie or several, between leaves of `like`.
        on: Whether each resolved tie is on, `[ties]`, or one boolean for all. It may be traced.

    Returns:
        The tree with overwritten targets.

    Raises:
        TieError: The ties do not fit `like`; a link of a chain has a switch of its own and may be on without the link before
            it; or the state of a target does not follow from its source's, as under `optax.flatten`; then copy the parameters
            alone.
    """
    switched, shapes = per_tie(on, resolve_full(ties, like), ties, leaves_by_path(like)[0]), shapes_by_path(like)
    leaves, treedef = leaves_by_path(tree)
    are_parameters = jax.tree.structure(tree) == jax.tree.structure(like)  # type: ignore[operator]
    owned = parameter_leaves(tree) if are_parameters else owned_leaves(tree, like)
    check_separate(tree, owned, [tie for tie, _ in switched], like)
    by_target, copied = {tie.target: (tie, is_on) for tie, is_on in switched}, dict(leaves)
    for path, leaf in owned.items():
        tie, is_on = by_target.get(leaf.owner, (None, False))
        if tie is not None and not is_lost(tie, leaf, leaves.get(leaf.path(tie.source))):
            shared = counterpart(tie, leaves, leaf, leaves[path], shapes[tie.source])
            copied[path] = beside(jnp.where(is_on, beside(shared, leaves[path]), leaves[path]), leaves[path])
    return jax.tree_util.tree_unflatten(treedef, copied.values())


def leaf_squares(grads: PyTree) -> PyTree:
    """Return a tree with the sum of squares of each leaf, a scalar; of complex entries, of their absolute values."""
    return jax.tree.map(square_of, grads)


def square_of(leaf: jax.Array) -> jax.Array:
    """Return the sum of the squares of the absolute values of an array; of fewer than 32 bits in float32, against overflow."""
    absolute = jnp.abs(leaf) if jnp.iscomplexobj(leaf) else leaf
    return jnp.sum(jnp.square(absolute.astype(jnp.promote_types(absolute.dtype, jnp.float32))))


def global_norm(grads: PyTree, ties: TiesLike, on: Switches, squares: Squares = leaf_squares) -> jax.Array:
    """Return the Euclidean norm of symmetrised gradients over all leaves, counting a tied pair once.

    Args:
        grads: Gradients as `symmetrise` returns them.
        ties: A tie or several, between leaves of `grads`.
        on: Whether each resolved tie is on, `[ties]`, or one boolean for all. It may be traced.
        squares: Maps gradients to a tree of sums of squares, one scalar per leaf. Replace it where each device holds only a
            shard of a leaf, to sum over shards.

    Returns:
        A scalar.

    Raises:
        TieError: The ties do not fit `grads`, or see `copy_to_targets`.
    """
    sums, _ = leaves_by_path(squares(grads))
    leaves = leaves_by_path(grads)[0]
    switched = per_tie(on, resolved_of_gradients(ties, leaves, grads)[0], of_gradients(ties, leaves), leaves)
    counted = {tie.target: ~is_on for tie, is_on in switched}
    terms = [jnp.where(counted.get(path, True), square, 0.0) for path, square in sums.items() if square is not None]
    return jnp.sqrt(sum(terms, start=jnp.zeros(())))


def clip_scale(grads: PyTree, ties: TiesLike, on: Switches, max_norm: float, squares: Squares = leaf_squares) -> jax.Array:
    """Return min(1, max_norm / norm), a scalar, for the `global_norm` of symmetrised gradients."""
    norm = global_norm(grads, ties, on, squares)
    return jnp.where(norm <= max_norm, 1.0, max_norm / norm)  # NaN if the norm is NaN


def clip_by_global_norm(grads: PyTree, ties: TiesLike, on: Switches, max_norm: float) -> PyTree:
    """Scale symmetrised gradients to a `global_norm` of at most `max_norm`, counting a tied pair once.

    Args:
        grads: Gradients as `symmetrise` returns them.
        ties: A tie or several, between leaves of `grads`.
        on: Whether each resolved tie is on, `[ties]`, or one boolean for all. It may be traced.
        max_norm: The maximum norm.

    Returns:
        Gradients with the structure of `grads`.

    Raises:
        TieError: The ties do not fit `grads`, or see `copy_to_targets`.
    """
    factor = clip_scale(grads, ties, on, max_norm)
    return jax.tree.map(lambda leaf: leaf * factor.astype(jnp.finfo(leaf.dtype).dtype), grads)
