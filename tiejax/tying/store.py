"""Permanent ties: `store` keeps each distinct array once, and `view` rebuilds the model's full tree from it."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from tiejax.tying.dropped import with_targets
from tiejax.tying.errors import TieError
from tiejax.tying.leaves import bits, is_concrete, is_label
from tiejax.tying.lost import check_kept, snapshot
from tiejax.tying.tie import PyTree, apply_transform, leaves_by_path
from tiejax.tying.ties import TiesLike, as_ties, resolve_full, resolve_leaves
from tiejax.tying.weighted import weighted


def store(params: PyTree, ties: TiesLike) -> PyTree:
    """Keep each distinct array once, with `None` in place of every tie's target.

    The values of the targets are dropped. jax, optax and orbax treat `None` as an empty subtree, so gradients, the optimizer
    state and checkpoints hold a tied array once as well. The arrays are not copied: a compiled function to which the result is
    donated deletes the arrays of `params` too.

    Args:
        params: Full parameters: any tree of arrays, of shapes and dtypes as `jax.eval_shape` returns, or of partitions over
            devices (`PartitionSpec` or `NamedSharding`), or of booleans or strings, such as the mask of `optax.masked` and the
            labels of `optax.multi_transform`. Other leaves, such as functions, are passed through.
        ties: A tie or several, between leaves of `params`.

    Returns:
        The stored parameters, a tree of the same containers as `params`.

    Raises:
        TieError: The ties do not fit `params`: a leaf is missing, a pattern matches no leaf, a leaf has two sources, ties form
            a cycle, shapes or dtypes differ, or a target is `None`, as in parameters that are already stored.

    Examples:
        >>> import numpy as np
        >>> params = {"encoder": np.ones((3, 2)), "decoder": np.zeros((2, 3))}
        >>> stored = store(params, [Tie("encoder", "decoder", transform="transpose")])
        >>> stored["encoder"].shape, stored["decoder"]
        ((3, 2), None)
    """
    leaves, treedef = leaves_by_path(params)
    for tie in resolve_full(ties, params):
        leaves[tie.target] = None
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def view(stored: PyTree, ties: TiesLike) -> PyTree:
    """Rebuild the full tree of a model from stored parameters: every target reads its source through the tie's transform T.

    Call it inside the loss. Automatic differentiation then sums the gradient over all uses of each stored array:
    dL/dW = dL/dW_source + T^-1(dL/dW_target), or a dL/dW_source + b T^-1(dL/dW_target) for a tie with gradient weights (a, b).

    An NNX module is copied, too: what its methods change in the copy, such as statistics of batch normalisation or counts of
    dropout keys, is lost. `tiejax.nnx` ties the module itself.

    Without compilation, source and target may be one array: copy the result before it is donated to a compiled function.

    A shape or a partition over devices of the target follows from that of the source. If dictionaries lack the keys of targets,
    because a file format without `None` dropped them, the keys are added.

    Args:
        stored: The parameters that `store` returned: arrays, or shapes, dtypes, partitions or labels of them.
        ties: The ties that were passed to `store`. `resolve(ties, params)`, called once, saves their resolution in every trace.

    Returns:
        Full parameters, with the tree structure that `store` received.

    Raises:
        TieError: The ties do not fit `stored`, or a target still holds an array because `store` was not called.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> ties = [Tie("encoder", "decoder", transform="transpose")]
        >>> stored = store({"encoder": jnp.ones((3, 2)), "decoder": jnp.zeros((2, 3))}, ties)
        >>> def loss(stored, x):
        ...     params = view(stored, ties)
        ...     return jnp.mean((x @ params["encoder"] @ params["decoder"] - x) ** 2)
        >>> grads = jax.grad(loss)(stored, jnp.eye(3))
        >>> grads["encoder"].shape, grads["decoder"]
        ((3, 2), None)
    """
    leaves, treedef = leaves_by_path(stored)
    filled = with_targets(stored, leaves, ties)
    if filled is not stored:
        leaves, treedef = leaves_by_path(filled)
    sources = {}
    for tie in resolve_leaves(ties, leaves):
        if leaves[tie.target] is not None:
            raise TieError(f"{tie}: {tie.target} still holds an array; pass the tree that store() returned")
        leaves[tie.target] = apply_transform(tie, _with_gradient_weight(leaves[tie.source], tie.weights[1]))
        sources[tie.source] = _with_gradient_weight(leaves[tie.source], tie.weights[0])
    leaves |= sources
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def _with_gradient_weight(x: Any, weight: Any) -> Any:
    """Return `x`, with its gradient multiplied by `weight`; a shape, a partition or a label has none."""
    if is_label(x) or (not is_concrete(x) and not isinstance(x, int | float | complex)):
        return x
    if isinstance(weight, int | float) and weight in (0, 1):
        return x if weight else jax.lax.stop_gradient(x)
    return weighted(x, weight)


def tied_loss(loss: Callable[..., Any], ties: TiesLike) -> Callable[..., Any]:
    """Turn a loss of full parameters into a loss of stored parameters.

    Args:
        loss: A function of full parameters and any other arguments.
        ties: The tie or ties that were passed to `store`.

    Returns:
        The function `(stored, *args, **kwargs) -> loss(view(stored, ties), *args, **kwargs)`.

    Raises:
        TieError: `loss` is not a function, or `ties` are not ties. When it is called: `loss` changes the state of an NNX
            module, such as statistics of batch normalisation, and does not return it (use `tiejax.nnx`).
    """
    if not callable(loss):
        raise TieError(f"loss: expected a function of full parameters, got {type(loss).__name__}; write tied_loss(loss, ties)")
    ties = as_ties(ties)

    @functools.wraps(loss)
    def loss_of_stored(stored: PyTree, *args: Any, **kwargs: Any) -> Any:
        params = view(stored, ties)
        before = snapshot(params)
        result = loss(params, *args, **kwargs)
        check_kept(before, result)
        return result

    return loss_of_stored


def equal_leaves(params: PyTree, ties: TiesLike) -> dict[str, bool]:
    """Return, for each tie's target, whether its array equals the transformed array of its source, bit for bit.

    The comparison is by value, so it shows whether a declared tie actually holds. NaNs with the same bits are equal.

    Args:
        params: Full parameters, not traced.
        ties: A tie or several, between leaves of `params`.

    Returns:
        A mapping from the target's path to whether the two arrays are equal.

    Raises:
        TieError: The ties do not fit `params`, or `params` are stored.
    """
    leaves, _ = leaves_by_path(params)
    return {
        tie.target: bits(apply_transform(tie, leaves[tie.source])).tobytes() == bits(leaves[tie.target]).tobytes()
        for tie in resolve_full(ties, params)
    }
