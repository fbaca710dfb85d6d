"""Permanent ties: `store` keeps each distinct array once, and `view` rebuilds the model's full tree from it."""

import collections
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import NNX_SUFFIX, bits, is_array, is_concrete, is_label, tieable
from tiejax.tying.patterns import reached
from tiejax.tying.tie import PyTree, apply_transform, leaves_by_path, path_name, weighted
from tiejax.tying.ties import TiesLike, as_ties, resolve, resolve_full, resolve_leaves


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
            a cycle, shapes, dtypes or labels differ, or a target is `None`, as in parameters that are already stored.

    Examples:
        >>> import numpy as np
        >>> params = {"encoder": np.ones((3, 2)), "decoder": np.zeros((2, 3))}
        >>> stored = store(params, [Tie("encoder", "decoder", transform="transpose")])
        >>> stored["encoder"].shape, stored["decoder"]
        ((3, 2), None)
    """
    leaves, treedef = leaves_by_path(params)
    for tie in resolve_full(ties, params):
        one, other = leaves[tie.source], leaves[tie.target]
        if is_label(one) and one != other:
            raise TieError(f"{tie}: the labels of the two leaves differ, {one!r} and {other!r}; give both one label")
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
        leaves[tie.target] = _contiguous(apply_transform(tie, _with_gradient_weight(leaves[tie.source], tie.weights[1])))
        sources[tie.source] = _with_gradient_weight(leaves[tie.source], tie.weights[0])
    leaves |= sources
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def _contiguous(x: Any) -> Any:
    """Return an array of numpy in the order of its entries, which writers of files such as safetensors take for granted."""
    return x.copy() if isinstance(x, np.ndarray) and not x.flags.c_contiguous else x


def _with_gradient_weight(x: Any, weight: Any) -> Any:
    """Return `x`, with its gradient multiplied by `weight`; an array of numpy, a shape, a partition or a label has none."""
    if is_label(x) or isinstance(x, np.ndarray) or (not is_concrete(x) and not isinstance(x, int | float | complex)):
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
        return call(loss, view(stored, ties), *args, **kwargs)

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


def count_parameters(params: PyTree, ties: TiesLike = ()) -> int:
    """Count the entries of all arrays, those of a tied array once.

    Args:
        params: Full or stored parameters: arrays, or shapes and dtypes. Other leaves, such as functions, count as 0.
        ties: Ties between leaves of `params`; `find_ties(params, equal=False)` finds leaves that are one array.

    Returns:
        The number of entries.

    Raises:
        TieError: The ties do not fit `params`.

    Examples:
        >>> import numpy as np
        >>> params = {"embed": np.ones((5, 2)), "head": np.ones((2, 5)), "bias": np.zeros(5)}
        >>> tie = Tie("embed", "head", transform="transpose")
        >>> count_parameters(params), count_parameters(params, tie)
        (25, 15)
    """
    targets = {tie.target for tie in resolve(ties, params)}
    leaves = leaves_by_path(params)[0]
    return sum(math.prod(leaf.shape) for path, leaf in leaves.items() if is_array(leaf) and path not in targets)


def assert_tied(params: PyTree, ties: TiesLike, atol: float = 0.0) -> None:
    """Raise TieError unless the two leaves of every tie are equal; NaN equals NaN. Leaves may be on different devices.

    In a compiled function the comparison becomes part of the program, and the error is raised on the host when its result
    arrives; jax then wraps it in another exception that quotes this message. Every call waits for the host, so do not use
    the assertion in code that is timed.

    Args:
        params: Full parameters, traced or not.
        ties: A tie or several, between leaves of `params`.
        atol: The largest difference between two floating-point entries that counts as equal; others must be the same.

    Raises:
        TieError: The leaves of a tie differ, the ties do not fit `params`, or `params` are stored.
        ValueError: `atol` is negative or NaN.
    """
    if not atol >= 0:
        raise ValueError(f"atol: expected a number >= 0, got {atol}")
    leaves, _ = leaves_by_path(params)
    resolved = resolve_full(ties, params)
    equal = [_equal(apply_transform(tie, leaves[tie.source]), leaves[tie.target], atol) for tie in resolved]
    names = [str(tie) for tie in resolved]
    if any(isinstance(one, jax.core.Tracer) for one in equal):
        jax.debug.callback(lambda *found: _raise_unless(found, names), *equal)
    else:
        _raise_unless(equal, names)


def _equal(one: Any, other: Any, atol: float) -> Any:
    traced = any(isinstance(x, jax.core.Tracer) for x in (one, other))
    if not traced:
        one, other = jax.device_get((one, other))  # they may be on different devices
    if not jnp.issubdtype(jnp.result_type(one), jnp.inexact):
        return jnp.array_equal(one, other)
    numpy: Any = jnp if traced else np  # which keeps float64, and numbers that are too small for other devices
    equal = (one == other) | (numpy.isnan(one) & numpy.isnan(other))
    if atol > 0:
        equal |= numpy.abs(numpy.subtract(one, other)) <= atol
    return numpy.all(equal)


def _raise_unless(equal: Sequence[Any], names: Sequence[str]) -> None:
    different = [name for name, is_equal in zip(names, equal, strict=True) if not is_equal]
    if different:
        others = f"; so do those of {len(different) - 1} more ties" if different[1:] else ""
        raise TieError(f"{different[0]}: the values of the two leaves differ{others}")


def with_targets(stored: PyTree, leaves: Mapping[str, Any], ties: TiesLike) -> PyTree:
    """Return stored parameters with `None` at every target whose key is missing from its dictionary.

    A tree that holds `None` anywhere has kept its keys and is returned as it is. So are trees whose missing part is not in
    dictionaries; `resolve` then names the missing leaf. Ties with several targets by pattern cannot be filled: a pattern does
    not name what is missing. leaves: those of `stored` by path.
    """
    if any(leaf is None for leaf in leaves.values()):
        return stored
    pairs = [(tie.source, tie.target) for tie in as_ties(ties)]
    found = reached(pairs, leaves, tieable(leaves))
    if all(target in leaves for target in found):
        return stored
    levels = {path_name(path): len(path) for path, _ in jax.tree_util.tree_flatten_with_path(stored)[0]}
    for target, source in found.items():
        if target not in levels:
            levels[target] = levels[source]
            stored = _with_none(stored, _keys(stored, target, levels[target]))
    return stored


def _keys(tree: PyTree, path: str, depth: int) -> list[str]:
    """Return the keys that lead to a missing leaf.

    They begin with keys that the tree has. If others there contain slashes, as the names of Haiku's modules or of a flat
    dictionary, there are as many keys as on the way to the tie's source, `depth`, and the first new one takes the remaining
    slashes.
    """
    if not isinstance(tree, Mapping):
        return path.split("/")
    own = max((key for key in tree if path.startswith(f"{key}/")), key=lambda key: len(str(key)), default=None)
    if own is not None and depth > 1:
        return [str(own), *_keys(tree[own], path.removeprefix(f"{own}/"), depth - 1)]
    return path.rsplit("/", depth - 1) if any("/" in str(key) for key in tree) else path.split("/")


def _with_none(tree: Any, keys: list[str]) -> Any:
    """Return nested dictionaries with `None` under a sequence of keys; anything else unchanged."""
    if not isinstance(tree, Mapping):
        return tree
    numbered = keys[0].isdecimal() and bool(tree) and all(isinstance(own, int) for own in tree)
    key = next((own for own in tree if str(own) == keys[0]), int(keys[0]) if numbered else keys[0])
    inner = _with_none(tree.get(key, {}), keys[1:]) if keys[1:] else None
    if isinstance(tree, collections.defaultdict):
        return type(tree)(tree.default_factory, {**tree, key: inner})
    return type(tree)({**tree, key: inner})  # type: ignore[call-arg]


def call(loss: Callable[..., Any], params: PyTree, /, *args: Any, **kwargs: Any) -> Any:
    """Call a loss; raise TieError if it changes NNX variables of `params` and does not return their new values.

    Transforms of NNX inside a loss replace the values of all variables that they see, parameters included, by equal ones. If
    parameters have changed, other variables are therefore taken for changed only if their values differ, or are traced.
    """
    nnx: Any = sys.modules.get("flax.nnx")  # a tree of NNX exists only if NNX was imported; others do not change in place
    if nnx is None:
        return loss(params, *args, **kwargs)
    pairs = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda node: isinstance(node, nnx.Variable))
    before = [(path_name(path), leaf, leaf.get_raw_value()) for path, leaf in pairs if isinstance(leaf, nnx.Variable)]
    result = loss(params, *args, **kwargs)
    changed = [(path, variable, value) for path, variable, value in before if variable.get_raw_value() is not value]
    returned = {id(leaf) for leaf in jax.tree.leaves(result)}
    replaced = any(isinstance(variable, nnx.Param) for _, variable, _ in changed)
    for path, variable, value in changed:
        now = variable.get_raw_value()
        if isinstance(variable, nnx.Param) or id(now) in returned or (replaced and _are_equal(now, value)):
            continue
        raise TieError(
            f"the loss changed {path.removesuffix(NNX_SUFFIX)} of a copy of the module, and the change would be lost; tie "
            "the module itself, with tiejax.nnx.tie(model, ties), or return the changed state from the loss"
        )
    return result


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are known to be equal."""
    traced = any(isinstance(x, jax.core.Tracer) for x in (one, other))
    return not traced and np.array_equal(bits(one), bits(other))
