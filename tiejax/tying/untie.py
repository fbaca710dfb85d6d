r"""Ending and beginning a tie during training: the parameters and the optimizer state that result.

When a tie ends, both leaves continue from the shared value, and a policy determines the optimizer state (see `untie`). Under
`zero-keep-count`, Adam's first updates are too large, since the first moment recovers within 10 steps and the second only
within 1,000. When a tie begins, the shared leaf and its state are the mean of both, or the source's, or the target's.

`untie` and `retie` are for parameters that are stored once; `untie_switched` and `retie_switched` are for switched ties
(`switched.py`), where shapes do not change. All four are pure and may be traced. They return a state with the structure, shapes
and dtypes of `optimizer.init(params)`, or raise TieError if the state of a leaf cannot be carried over (`optimizer_state.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError, short
from tiejax.tying.leaves import beside, bits, is_concrete, is_trained
from tiejax.tying.optimizer_state import (
    OwnedLeaf,
    check_accumulated,
    check_divisible,
    check_separate,
    counter_beside,
    counterpart,
    fits,
    fitted,
    is_lost,
    mixed,
    owned_leaves,
    parameter_leaves,
    shapes_by_path,
)
from tiejax.tying.policies import POLICIES, Keep, New, Policy
from tiejax.tying.store import store, view
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path
from tiejax.tying.ties import TiesLike, resolve, resolve_full
from tiejax.tying.transforms import Shape, entries_read, reads_part

CHOICES = {"policy": POLICIES, "new": get_args(New), "keep": get_args(Keep)}


@runtime_checkable
class Optimizer(Protocol):
    """The interface of `optax.GradientTransformation`, so that this package does not depend on optax."""

    def init(self, params: Any, /) -> Any:
        """Return the initial state for `params`."""

    def update(self, updates: Any, state: Any, params: Any = None, /) -> Any:
        """Return transformed updates and the next state."""


def only_tied(tree: PyTree, ties: TiesLike) -> PyTree:
    """Replace every leaf that is neither a source nor a target of a tie with `None`.

    The policy `split` of `untie` needs `optimizer.init(only_tied(params, ties))`, updated at every step with the gradients of
    each use, `only_tied(gradients_by_use(...), ties)`.

    Args:
        tree: Full parameters, or gradients of them.
        ties: Ties between leaves of `tree`.

    Returns:
        A tree that holds only the sources and targets of ties.

    Raises:
        TieError: The ties do not fit `tree`.
    """
    leaves, treedef = leaves_by_path(tree)
    named = {path for tie in resolve_full(ties, tree) for path in (tie.source, tie.target)}
    return jax.tree_util.tree_unflatten(treedef, [leaf if path in named else None for path, leaf in leaves.items()])


def untie_parameters(stored: PyTree, ties: TiesLike) -> PyTree:
    """End ties between parameters that have no optimizer state: return full parameters, every leaf in a separate buffer.

    Unlike those of `view`, its arrays are copies, so that the result can be donated, and saved as an untied model.

    Args:
        stored: The parameters that `store` returned.
        ties: The ties that were passed to `store`.

    Returns:
        Full parameters.

    Raises:
        TieError: The ties do not fit `stored`.

    Examples:
        >>> import numpy as np
        >>> params = untie_parameters({"embed": np.ones(2), "head": None}, Tie("embed", "head"))
        >>> params["head"].tolist()
        [1.0, 1.0]
    """
    return jax.tree.map(_copied, view(stored, ties))


def _copied(leaf: Any) -> Any:
    """Return a copy of an array, also of random keys; one of numpy whose dtype jax would narrow stays one of numpy."""
    if isinstance(leaf, np.ndarray) and jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
        return leaf.copy()
    return jnp.array(leaf, copy=True) if is_concrete(leaf) else leaf


def untie(
    optimizer: Optimizer,
    stored: PyTree,
    opt_state: PyTree,
    ties: TiesLike,
    policy: Policy = "copy",
    new: New = "target",
    use_states: PyTree = None,
) -> tuple[PyTree, PyTree]:
    """End ties during training: return full parameters and their optimizer state, to continue without the ties.

    Both leaves of a tie continue from the shared value, each in a separate buffer.

    Args:
        optimizer: The optax optimizer that built `opt_state`.
        stored: The parameters that `store` returned, as trained so far.
        opt_state: The optimizer state of `stored`.
        ties: The ties that were passed to `store`.
        policy: How the optimizer state continues. Moments are rearranged by the tie's transform, but not scaled.
            `copy`: both leaves keep the moments and the step count of the shared leaf.
            `zero`: the new leaf starts with the initial state, and its bias correction restarts. This needs an optimizer that
            counts steps per leaf, such as `tiejax.training.make_optimizer(..., counts="leaf")`.
            `zero-keep-count`: the new leaf's moments are 0 and its step count continues; Adam's first updates are then too
            large.
            `split`: each leaf gets the state of its use's gradients alone, from `use_states`. All ties of a source must end
            together: its state would lack the uses of those that go on.
        new: Which leaf of a tie counts as new.
        use_states: For `split`: an optimizer state of `only_tied(params, ties)`, updated from step 0 with the gradients of each
            use.

    Returns:
        Full parameters and their optimizer state.

    Raises:
        TieError: The ties do not fit `stored`; `opt_state` belongs to another optimizer or other parameters, or cannot be
            divided between two leaves, as under `optax.flatten`, or between two updates of `optax.MultiSteps`; `zero` with an
            optimizer that counts the steps of all leaves together; or `split` without `use_states`.
        ValueError: An unknown policy.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> ties = [Tie("embed", "head")]
        >>> stored = store({"embed": jnp.ones(2), "head": jnp.zeros(2)}, ties)
        >>> optimizer = optax.adamw(1e-3)
        >>> params, opt_state = untie(optimizer, stored, optimizer.init(stored), ties)
        >>> sorted(params), sorted(opt_state[0].mu)
        (['embed', 'head'], ['embed', 'head'])
    """
    _check("untie(optimizer, stored, opt_state, ties)", optimizer, stored, opt_state, ties, policy=policy, new=new)
    params = untie_parameters(stored, ties)
    resolved, states = resolve(ties, params), with_state(opt_state, stored)
    old = leaves_by_path(fitted(opt_state, shapes_of_init(optimizer, trained(stored, states))))[0]
    whole = trained(params, states | {tie.target for tie in resolved if tie.source in states})
    like = shapes_of_init(optimizer, whole, are_stored=False)
    owned, shapes, by_target = owned_leaves(like, params), shapes_by_path(params), {tie.target: tie for tie in resolved}
    leaves = _replaced(optimizer, whole, like, owned, resolved, policy, new, use_states)
    for path, wanted in leaves_by_path(like)[0].items():
        if path in leaves or wanted is None:
            continue
        tie = by_target.get(owned[path].owner) if path in owned else None
        if tie is not None and old.get(path) is None:
            check_divisible(owned[path])
            leaves[path] = jnp.array(counterpart(tie, old, owned[path], wanted, shapes[tie.source]), copy=True)
        elif fits(old.get(path), wanted):
            leaves[path] = old[path]
        else:
            raise mixed(path, wanted)
    return params, _state(leaves, like)


def shapes_of_init(optimizer: Optimizer, params: PyTree, are_stored: bool = True) -> PyTree:
    """Return shapes and dtypes of a new state of parameters; raises TieError if the optimizer does not accept them."""
    try:
        return jax.eval_shape(optimizer.init, params)
    except Exception as error:  # whatever an optimizer raises
        if are_stored and not isinstance(error, AttributeError | TypeError | ValueError):
            raise  # not because of a missing leaf
        if are_stored:
            what = "stored parameters, which have None in place of a target"
            advice = "use switched ties (untie_switched, retie_switched), or another optimizer"
        else:
            what = "the full parameters, as with a mask or labels that are a tree of the stored ones"
            advice = "give it a function of the parameters instead"
        raise TieError(f"optimizer.init does not accept {what} ({short(error)}); {advice}") from error


def _state(leaves: Mapping[str, Any], like: PyTree) -> PyTree:
    """Return a state like `like` from leaves by path, after a check of their shapes and dtypes."""
    paths, treedef = leaves_by_path(like)
    return fitted(jax.tree_util.tree_unflatten(treedef, [leaves.get(path) for path in paths]), like)


def _replaced(
    optimizer: Optimizer,
    params: PyTree,
    like: PyTree,
    owned: Mapping[str, OwnedLeaf],
    ties: Sequence[Tie],
    policy: Policy,
    new: New,
    use_states: PyTree,
) -> dict[str, Any]:
    """Return the leaves by path that a policy does not continue from `opt_state`; `like` is a state of `params`."""
    if policy == "copy":
        return {}
    if policy == "split":
        if use_states is None:
            raise TieError(
                "policy 'split' needs use_states: an optimizer state of each use's gradients, from step 0 (see only_tied)"
            )
        given, changed = leaves_by_path(use_states)[0], {path for tie in ties for path in (tie.source, tie.target)}
    else:
        given, changed = leaves_by_path(optimizer.init(params))[0], {getattr(tie, new) for tie in ties}
    paths, replaced = leaves_by_path(like)[0], {}
    for path, leaf in owned.items():
        if leaf.owner not in changed or (policy == "zero-keep-count" and leaf.field == "count"):
            continue
        check_divisible(leaf)
        if policy == "split" and leaf.is_value:
            raise TieError(f"policy 'split': {path} of the optimizer state holds values of {leaf.owner}, which no use gives")
        if policy == "zero" and (count := counter_beside(leaf, paths, owned)) is not None:
            raise TieError(
                f"policy 'zero' cannot restart {leaf.owner}: {count} of the optimizer state is that of all leaves "
                "together, as a count of steps is; use an optimizer that counts steps per leaf, such as "
                "tiejax.training.make_optimizer(..., counts='leaf'), or policy 'zero-keep-count'"
            )
        if given.get(path) is None:
            missing = "use_states has" if policy == "split" else "a new optimizer state has"
            raise TieError(f"policy {policy!r}: {missing} no {path}, which the given optimizer state has")
        replaced[path] = given[path]
    return replaced


def retie(
    optimizer: Optimizer, params: PyTree, opt_state: PyTree, ties: TiesLike, keep: Keep = "mean"
) -> tuple[PyTree, PyTree]:
    """Begin ties during training: return stored parameters and their optimizer state, to continue with the ties.

    Args:
        optimizer: The optax optimizer that built `opt_state`.
        params: Full parameters.
        opt_state: The optimizer state of `params`.
        ties: Ties between leaves of `params`.
        keep: The value and the state of the shared leaf: the `mean` of both leaves, or those of the `source` or the `target`.
            Step counts are not averaged: with `mean`, they are the source's. The shared leaf stays on the source's devices.

    Returns:
        Stored parameters, as returned by `store`, and their optimizer state. Arrays that do not change are those of the
        arguments, so that a compiled function to which these are donated deletes them there, too.

    Raises:
        TieError: The ties do not fit `params`, or `opt_state` belongs to another optimizer or other parameters, or the states
            of two leaves cannot be joined, as between two updates of `optax.MultiSteps`.
        ValueError: An unknown value of `keep`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> optimizer = optax.adamw(1e-3)
        >>> params = {"embed": jnp.array([1.0, 2.0]), "head": jnp.array([3.0, 4.0])}
        >>> opt_state, tie = optimizer.init(params), Tie("embed", "head")
        >>> stored, opt_state = retie(optimizer, params, opt_state, tie, keep="mean")
        >>> stored["embed"].tolist(), stored["head"]
        ([2.0, 3.0], None)
    """
    _check("retie(optimizer, params, opt_state, ties)", optimizer, params, opt_state, ties, keep=keep)
    resolved, states, shapes = resolve_full(ties, params), with_state(opt_state, params), shapes_by_path(params)
    old = fitted(opt_state, shapes_of_init(optimizer, trained(params, states)))
    owned, targets = owned_leaves(old, params), {tie.target for tie in resolved}
    stored = store(_tree(params, _joined(params, parameter_leaves(params), resolved, shapes, keep)), ties)
    like = shapes_of_init(optimizer, trained(stored, states))
    joined, wanted = _joined(old, owned, resolved, shapes, keep), leaves_by_path(like)[0]
    for path, leaf in leaves_by_path(old)[0].items():
        of_target = path in owned and owned[path].owner in targets
        if leaf is not None and not of_target and not fits(leaf, wanted.get(path)):
            raise mixed(path, leaf)
    return stored, _state({path: joined[path] for path, leaf in wanted.items() if leaf is not None}, like)


def untie_switched(
    optimizer: Optimizer,
    params: PyTree,
    opt_state: PyTree,
    ties: TiesLike,
    policy: Policy = "copy",
    new: New = "target",
    use_states: PyTree = None,
) -> tuple[PyTree, PyTree]:
    """Apply a policy to the optimizer state of full parameters when switched ties end.

    Args:
        optimizer: The optax optimizer that built `opt_state`.
        params: Full parameters.
        opt_state: The optimizer state of `params`.
        ties: Ties between leaves of `params`.
        policy: See `untie`.
        new: See `untie`.
        use_states: See `untie`.

    Returns:
        The parameters, unchanged, and their optimizer state.

    Raises:
        TieError: See `untie`.
        ValueError: An unknown policy.
    """
    _check("untie_switched(optimizer, params, opt_state, ties)", optimizer, params, opt_state, ties, policy=policy, new=new)
    resolved, whole = resolve_full(ties, params), trained(params, with_state(opt_state, params))
    opt_state = fitted(opt_state, jax.eval_shape(optimizer.init, whole))
    owned = owned_leaves(opt_state, params)
    if policy != "copy":
        check_separate(opt_state, owned, resolved, params)
    return params, _tree(opt_state, _replaced(optimizer, whole, opt_state, owned, resolved, policy, new, use_states))


def _tree(tree: PyTree, leaves: Mapping[str, Any]) -> PyTree:
    """Replace leaves of `tree`, by path; raise TieError if their shapes or dtypes differ from those replaced."""
    return _state(leaves_by_path(tree)[0] | dict(leaves), tree)


def retie_switched(
    optimizer: Optimizer, params: PyTree, opt_state: PyTree, ties: TiesLike, keep: Keep = "mean"
) -> tuple[PyTree, PyTree]:
    """Make both leaves of every tie, and their optimizer states, equal when switched ties begin.

    Args:
        optimizer: The optax optimizer that built `opt_state`.
        params: Full parameters.
        opt_state: The optimizer state of `params`.
        ties: Ties between leaves of `params`.
        keep: See `retie`.

    Returns:
        Full parameters and their optimizer state.

    Raises:
        TieError: The ties do not fit `params`; `opt_state` belongs to another optimizer or other parameters, or the states of
            two leaves in it cannot be joined.
        ValueError: An unknown value of `keep`.
    """
    _check("retie_switched(optimizer, params, opt_state, ties)", optimizer, params, opt_state, ties, keep=keep)
    resolved, shapes, whole = resolve_full(ties, params), shapes_by_path(params), trained(params, with_state(opt_state, params))
    opt_state = fitted(opt_state, jax.eval_shape(optimizer.init, whole))
    owned_states = owned_leaves(opt_state, params)
    check_separate(opt_state, owned_states, resolved, params)
    by_target, joined_trees = {tie.target: tie for tie in resolved}, []
    for tree, owned in ((params, parameter_leaves(params)), (opt_state, owned_states)):
        joined = _joined(tree, owned, resolved, shapes, keep)
        for path, leaf in owned.items():
            tie = by_target.get(leaf.owner)
            if tie is not None and not is_lost(tie, leaf, joined.get(leaf.path(tie.source))):
                found = counterpart(tie, joined, leaf, joined[path], shapes[tie.source])
                joined[path] = beside(_copied(found), joined[path])  # two leaves in one buffer could not be donated
        joined_trees.append(_tree(tree, joined))
    return joined_trees[0], joined_trees[1]


def _joined(
    tree: PyTree, owned: Mapping[str, OwnedLeaf], ties: Sequence[Tie], shapes: Mapping[str, Shape], keep: Keep
) -> dict[str, Any]:
    """Return the leaves by path of full parameters or their optimizer state, in which the sources have the shared state."""
    groups: dict[str, list[Tie]] = {}
    for tie in ties:
        groups.setdefault(tie.source, []).append(tie)
    old = leaves_by_path(tree)[0]
    joined = dict(old)
    by_target = {} if keep == "source" else {tie.target: tie for tie in ties}
    for path, leaf in owned.items():
        own, group = by_target.get(leaf.owner), groups.get(leaf.owner, [])
        if own is not None and old.get(path) is not None and old.get(leaf.path(own.source)) is None:
            raise TieError(
                f"{own}: the optimizer state has {path}, but no {leaf.path(own.source)}: the optimizer treats the two leaves "
                "differently, as optax.multi_transform does with two labels; give both one label, or use keep='source'"
            )
        if group:
            check_divisible(leaf)
        if not group or keep == "source":
            continue
        shape = shapes[leaf.owner]
        if keep == "target":
            _check_disjoint(group, shape)
            for tie in group:
                joined[path] = beside(counterpart(tie, old, leaf, joined[path], shape, back=True), old[path])
        elif jnp.issubdtype(jnp.result_type(old[path]), jnp.inexact):
            others = [beside(counterpart(tie, old, leaf, old[path], shape, back=True), old[path]) for tie in group]
            joined[path] = _mean(old[path], others, group, shape)
        elif not leaf.classes:
            _check_same_integers(group, old)
    return {path: beside(leaf, old[path]) for path, leaf in joined.items()}


def _check_same_integers(group: Sequence[Tie], leaves: Mapping[str, Any]) -> None:
    """Raise TieError if parameters without a mean, such as integers, are known to differ from what their ties say."""
    for tie in group:
        one, other = apply_transform(tie, leaves[tie.source]), leaves[tie.target]
        if is_concrete(one) and is_concrete(other) and not np.array_equal(bits(one), bits(other)):
            raise TieError(f"{tie}: the leaves differ, and {other.dtype} has no mean; use keep='source' or keep='target'")


def _mean(shared: Any, others: Sequence[Any], group: Sequence[Tie], shape: Shape) -> Any:
    """Return the mean of a source and its targets, for every entry over those that have it; all in the source's layout.

    An array that does not end in `shape`, that of the source, is no part of slices.
    """
    if not any(reads_part(tie.transform) for tie in group) or jnp.shape(shared)[-len(shape) :] != shape:
        number = 1 + len(others)
        # Not the sum over the number, which can overflow, and changes equal arrays by rounding.
        return sum((other / number - shared / number for other in others), start=shared)
    read = [entries_read(tie.transform, shape) if reads_part(tie.transform) else jnp.ones(shape, bool) for tie in group]
    count = sum((own.astype(jnp.result_type(shared)) for own in read), start=jnp.ones(shape, jnp.result_type(shared)))
    added = (jnp.where(own, other / count - shared / count, 0) for own, other in zip(read, others, strict=True))
    return sum(added, start=shared)


def _check_disjoint(group: Sequence[Tie], shape: Shape) -> None:
    """Raise TieError if the targets of several ties contain one entry of their source, so that their values may differ."""
    if len(group) < 2:
        return
    with jax.ensure_compile_time_eval():
        read = [entries_read(tie.transform, shape) if reads_part(tie.transform) else jnp.ones(shape, bool) for tie in group]
        overlap = bool((jnp.sum(jnp.stack(read), axis=0) > 1).any())
    if overlap:
        targets = ", ".join(tie.target for tie in group)
        raise TieError(f"keep: target is ambiguous for {group[0].source}, which {targets} read; use mean or source")


def with_state(opt_state: PyTree, params: PyTree) -> set[str]:
    """Return the paths of the parameters of which the optimizer state has a state."""
    return {leaf.owner for leaf in owned_leaves(opt_state, params).values()}


def trained(params: PyTree, states: set[str]) -> PyTree:
    """Replace leaves that an optimizer does not train, such as functions and settings, with `None`.

    Kept are floating-point arrays, and the leaves at the paths `states`, of which the optimizer state has a state.
    """
    leaves, treedef = leaves_by_path(params)
    kept = [leaf if path in states or is_trained(leaf) else None for path, leaf in leaves.items()]
    return jax.tree_util.tree_unflatten(treedef, kept)


def _check(call: str, optimizer: Any, params: PyTree, opt_state: PyTree, ties: TiesLike, **choices: str) -> None:
    """Raise TieError for an optimizer that is none, or of NNX, or for swapped arguments, and ValueError for a wrong choice.

    TieError, too, for a state between two updates of `optax.MultiSteps`.
    """
    if any(map(_of_nnx, (optimizer, *jax.tree.leaves(opt_state, is_leaf=_of_nnx)))):
        function = call.partition("(")[0].removesuffix("_switched")
        raise TieError(f"the optimizer is an nnx.Optimizer; write tiejax.nnx.{function}(model, optimizer, ...)")
    if not isinstance(optimizer, Optimizer):
        found = f"optimizer: expected an optax optimizer, with init and update, got {type(optimizer).__name__}"
        raise TieError(f"{found}; the arguments are {call}")
    if not _resolves(ties, params) and _resolves(ties, opt_state):
        raise TieError(f"the parameters and the optimizer state are swapped; the arguments are {call}")
    for name, value in choices.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{name}: expected one of {', '.join(CHOICES[name])}, got {value!r}")
    check_accumulated(opt_state, choices.get("policy"))


def _resolves(ties: TiesLike, tree: PyTree) -> bool:
    try:
        resolve(ties, tree)
    except TieError:
        return False
    return True


def _of_nnx(node: Any) -> bool:
    """Whether a node is an optimizer of NNX, or a variable of its state."""
    return any(base.__module__.startswith("flax.nnx.training") for base in type(node).__mro__)
