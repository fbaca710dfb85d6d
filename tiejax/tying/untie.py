r"""Ending and beginning a tie during training: the parameters and the optimizer state that result.

When a tie ends, both leaves continue from the shared value. A policy determines the optimizer state:

* `copy`: both leaves keep the state of the shared leaf, moments and step count;
* `zero`: the new leaf starts with the initial state, and its bias correction restarts, as for a leaf that was just initialised;
* `zero-keep-count`: the new leaf's moments are 0 and its step count continues. Adam's first updates are then too large, since
  the first moment recovers within 10 steps and the second only within 1,000: a hidden spike;
* `split`: each leaf gets the state that its own use's gradients alone would have built up, kept separately from step 0
  (`use_states`).

When a tie begins, the shared leaf and its state are the mean of both, or the source's, or the target's.

`untie` and `retie` are for parameters that are stored once; `untie_switched` and `retie_switched` are for switched ties
(`switched.py`), where shapes do not change. All four are pure and may be traced. They find the state of a leaf by its path, in
any optax state.
"""

from collections.abc import Sequence
from typing import Any, Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import is_array
from tiejax.tying.policies import POLICIES, Keep, New, Policy
from tiejax.tying.store import store, view
from tiejax.tying.tie import (
    PyTree,
    Tie,
    Ties,
    apply_transform,
    invert_transform,
    leaves_by_path,
    resolve,
    resolve_full,
    state_tie,
)
from tiejax.tying.transforms import entries_read, reads_part, result


@runtime_checkable
class Optimizer(Protocol):
    """The interface of `optax.GradientTransformation`, so that this package does not depend on optax."""

    def init(self, params: Any, /) -> Any:
        """Return the initial state for `params`."""

    def update(self, updates: Any, state: Any, params: Any = None, /) -> Any:
        """Return transformed updates and the next state."""


def only_tied(tree: PyTree, ties: Ties) -> PyTree:
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


def untie(
    optimizer: Optimizer,
    stored: PyTree,
    opt_state: PyTree,
    ties: Ties,
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
            `split`: each leaf gets the state of its use's gradients alone, from `use_states`.
        new: Which leaf of a tie counts as new.
        use_states: For `split`: an optimizer state of `only_tied(params, ties)`, updated from step 0 with the gradients of each
            use.

    Returns:
        Full parameters and their optimizer state.

    Raises:
        TieError: The ties do not fit `stored`; `opt_state` belongs to another optimizer or other parameters; `zero` with an
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
    _check_arguments("untie(optimizer, stored, opt_state, ties)", optimizer, stored, opt_state, ties)
    _check_choice("new", new, get_args(New))
    # A copy, since one buffer in two leaves could not be donated.
    params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True) if is_array(leaf) else leaf, view(stored, ties))
    resolved = resolve(ties, params)
    fresh, treedef = leaves_by_path(optimizer.init(_trained(params, opt_state, resolved)))
    old, _ = leaves_by_path(opt_state)
    owners = _owners(fresh, params)
    by_target = {tie.target: tie for tie in resolved}
    leaves = {}
    for path, like in fresh.items():
        tie = by_target.get(owners.get(path, ("", ""))[1])
        if tie is not None and like is not None:
            source = f"{owners[path][0]}{tie.source}"
            if old.get(source) is None:
                raise TieError(f"{tie}: the optimizer state has no {source}, from which {path} would start")
            replaced = policy != "copy" and new == "target"  # by `untie_switched`, below
            lost = replaced and _is_lost(tie, old[source])
            leaves[path] = jnp.array(like if lost else _to_target(tie, old[source], source, like, is_state=True), copy=True)
        elif like is not None and old.get(path) is None:
            raise _foreign_state(path)
        else:
            leaves[path] = old[path]
    state = jax.tree_util.tree_unflatten(treedef, leaves.values())
    return params, untie_switched(optimizer, params, state, ties, policy, new, use_states)


def _foreign_state(path: str) -> TieError:
    return TieError(f"the optimizer state has no {path}: it belongs to another optimizer or to other parameters")


def retie(optimizer: Optimizer, params: PyTree, opt_state: PyTree, ties: Ties, keep: Keep = "mean") -> tuple[PyTree, PyTree]:
    """Begin ties during training: return stored parameters and their optimizer state, to continue with the ties.

    Args:
        optimizer: The optax optimizer that built `opt_state`.
        params: Full parameters.
        opt_state: The optimizer state of `params`.
        ties: Ties between leaves of `params`.
        keep: The value and the state of the shared leaf: the `mean` of both leaves, or those of the `source` or the `target`.
            Step counts are not averaged: with `mean`, they are the source's.

    Returns:
        Stored parameters, as returned by `store`, and their optimizer state.

    Raises:
        TieError: The ties do not fit `params`, or `opt_state` belongs to another optimizer or other parameters.
        ValueError: An unknown value of `keep`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> optimizer = optax.adamw(1e-3)
        >>> params = {"embed": jnp.array([1.0, 2.0]), "head": jnp.array([3.0, 4.0])}
        >>> stored, opt_state = retie(optimizer, params, optimizer.init(params), [Tie("embed", "head")], keep="mean")
        >>> stored["embed"].tolist(), stored["head"]
        ([2.0, 3.0], None)
    """
    _check_arguments("retie(optimizer, params, opt_state, ties)", optimizer, params, opt_state, ties)
    params, opt_state = retie_switched(params, opt_state, ties, keep)
    stored, joined = store(params, ties), leaves_by_path(opt_state)[0]
    trained = _trained(stored, opt_state, resolve(ties, stored))
    fresh, treedef = leaves_by_path(jax.eval_shape(optimizer.init, trained))
    missing = [path for path, leaf in fresh.items() if leaf is not None and joined.get(path) is None]
    if missing:
        raise _foreign_state(missing[0])
    leaves = [None if leaf is None else joined[path] for path, leaf in fresh.items()]
    return stored, jax.tree_util.tree_unflatten(treedef, leaves)


def untie_switched(
    optimizer: Optimizer,
    params: PyTree,
    opt_state: PyTree,
    ties: Ties,
    policy: Policy,
    new: New = "target",
    use_states: PyTree = None,
) -> PyTree:
    """Apply a policy to the optimizer state of full parameters when switched ties end; parameters do not change.

    Args:
        optimizer: The optax optimizer that built `opt_state`.
        params: Full parameters.
        opt_state: The optimizer state of `params`.
        ties: Ties between leaves of `params`.
        policy: See `untie`.
        new: See `untie`.
        use_states: See `untie`.

    Returns:
        The optimizer state after the ties.

    Raises:
        TieError: See `untie`.
        ValueError: An unknown policy.
    """
    _check_choice("new", new, get_args(New))
    if policy == "copy":
        return opt_state
    leaves, treedef = leaves_by_path(opt_state)
    owners, resolved = _owners(leaves, params), resolve_full(ties, params)
    if policy == "split":
        if use_states is None:
            raise TieError(
                "policy 'split' needs use_states: an optimizer state of each use's gradients, from step 0 (see only_tied)"
            )
        given, replaced = leaves_by_path(use_states)[0], {path for tie in resolved for path in (tie.source, tie.target)}
    elif policy in ("zero", "zero-keep-count"):
        given = leaves_by_path(optimizer.init(_trained(params, opt_state, resolved)))[0]
        replaced = {getattr(tie, new) for tie in resolved}
    else:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, got {policy!r}")
    for path, (prefix, owner) in owners.items():
        if owner not in replaced or leaves[path] is None:
            continue
        kind = prefix.rstrip("/")
        parent = kind[: -len(kind.split("/")[-1])]
        if policy == "zero" and leaves.get(f"{parent}count") is not None:
            raise TieError(
                f"policy 'zero' cannot restart {owner}: {parent}count of the optimizer state counts the steps of all leaves "
                "together; use an optimizer that counts steps per leaf, such as "
                "tiejax.training.make_optimizer(..., counts='leaf'), or policy 'zero-keep-count'"
            )
        if policy == "zero-keep-count" and kind.split("/")[-1] == "count":
            continue
        if given.get(path) is None:
            missing = "use_states has" if policy == "split" else "a new optimizer state has"
            raise TieError(f"policy {policy!r}: {missing} no {path}, which the given optimizer state has")
        leaves[path] = given[path]
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def retie_switched(params: PyTree, opt_state: PyTree, ties: Ties, keep: Keep = "mean") -> tuple[PyTree, PyTree]:
    """Make both leaves of every tie, and their optimizer states, equal when switched ties begin.

    Args:
        params: Full parameters.
        opt_state: The optimizer state of `params`.
        ties: Ties between leaves of `params`.
        keep: See `retie`.

    Returns:
        Full parameters and their optimizer state.

    Raises:
        TieError: The ties do not fit `params`, or `opt_state` lacks the state of a target.
        ValueError: An unknown value of `keep`.
    """
    _check_choice("keep", keep, get_args(Keep))
    resolved = resolve_full(ties, params)
    by_source: dict[str, list[Tie]] = {}
    for tie in resolved:
        by_source.setdefault(tie.source, []).append(tie)

    def joined(tree: PyTree, owners: dict[str, tuple[str, str]], is_state: bool) -> PyTree:
        leaves, treedef = leaves_by_path(tree)
        for path, (prefix, owner) in owners.items():
            if owner not in by_source or leaves[path] is None:
                continue
            group = {f"{prefix}{tie.target}": tie for tie in by_source[owner]}
            for other_path, tie in group.items():
                if leaves.get(other_path) is None:
                    raise TieError(
                        f"{tie}: the optimizer state has {path} but no {other_path}; pass the state of all parameters"
                    )
            shared = leaves[path]
            if keep == "target":
                for other_path, tie in group.items():
                    shared = _to_source(tie, leaves[other_path], path, shared, is_state)
            elif keep == "mean" and jnp.issubdtype(jnp.result_type(shared), jnp.inexact):
                others = [_to_source(tie, leaves[other], path, shared, is_state) for other, tie in group.items()]
                shared = _mean(shared, others, list(group.values()))
            leaves[path] = shared
            for other_path, tie in group.items():
                if not (is_state and _is_lost(tie, shared)):
                    leaves[other_path] = _to_target(tie, shared, path, leaves[other_path], is_state)
        return jax.tree_util.tree_unflatten(treedef, leaves.values())

    state_owners = _owners(leaves_by_path(opt_state)[0], params)
    param_owners = {path: ("", path) for path in leaves_by_path(params)[0]}
    return joined(params, param_owners, is_state=False), joined(opt_state, state_owners, is_state=True)


def _owners(state: dict[str, Any], params: PyTree) -> dict[str, tuple[str, str]]:
    """Map the path of every leaf of an optimizer state that belongs to a parameter to (prefix, path of the parameter)."""
    paths, owners = set(leaves_by_path(params)[0]), {}
    for name in state:
        parts = name.split("/")
        # The longest match: `mu/head/table` belongs to head/table even if there is a parameter `table`.
        for start in range(len(parts)):
            owner = "/".join(parts[start:])
            if owner in paths:
                owners[name] = (name[: len(name) - len(owner)], owner)
                break
    return owners


def _to_target(tie: Tie, leaf: Any, path: str, like: Any, is_state: bool) -> Any:
    """Map the source's value, or a leaf of its optimizer state, to the layout and dtype of the target's, `like`."""
    by = _state_tie(tie, leaf, path) if is_state else tie
    return jnp.asarray(leaf if by is None else apply_transform(by, leaf), jnp.result_type(like))


def _to_source(tie: Tie, leaf: Any, path: str, source: Any, is_state: bool) -> Any:
    """Return `source`, the source's value or a leaf of its state, with the entries that the target reads taken from `leaf`."""
    by = _state_tie(tie, source, path) if is_state else tie
    return jnp.asarray(leaf if by is None else invert_transform(by, leaf, source), jnp.result_type(source))


def _state_tie(tie: Tie, leaf: Any, path: str) -> Tie | None:
    """Return the tie between states; None for a scalar, such as a step count. `leaf`: of the source's state, at `path`."""
    shape, by = jnp.shape(leaf), state_tie(tie)
    if not shape:
        return None
    if by is None:
        raise TieError(
            f"{tie}: {path} of the optimizer state cannot be carried through a pair of functions; use a policy that replaces "
            "it ('zero', 'zero-keep-count' or 'split'; for retie, keep='source'), or, if the functions only move entries, "
            "Functions(forward, inverse, rearranges=True)"
        )
    try:
        result(by.transform, jax.ShapeDtypeStruct(shape, jnp.result_type(leaf)))
    except TieError as error:
        raise TieError(f"{tie}: {error}, got {path} {shape} of the optimizer state") from None
    return by


def _is_lost(tie: Tie, leaf: Any) -> bool:
    """Whether a leaf of the source's optimizer state cannot be mapped to the target's."""
    return jnp.ndim(leaf) > 0 and state_tie(tie) is None


def _mean(shared: Any, others: Sequence[Any], group: Sequence[Tie]) -> Any:
    """Return the mean of a source and its targets, for every entry over those that have it; all in the source's layout."""
    if not any(reads_part(tie.transform) for tie in group) or not jnp.shape(shared):
        return sum(others, start=shared) / (1 + len(others))
    read = [entries_read(tie.transform, jnp.shape(shared)) for tie in group]
    total = sum((jnp.where(own, other, 0) for own, other in zip(read, others, strict=True)), start=shared)
    return total / sum((own.astype(total.dtype) for own in read), start=jnp.ones_like(total))


def _trained(params: PyTree, opt_state: PyTree, resolved: Sequence[Tie]) -> PyTree:
    """Replace leaves that an optimizer does not train, such as functions and settings, with `None`.

    Kept are floating-point arrays, and everything else of which the optimizer state has a state.
    """
    state = {path: leaf for path, leaf in leaves_by_path(opt_state)[0].items() if leaf is not None}
    owners = {owner for _, owner in _owners(state, params).values()}
    owners |= {tie.target for tie in resolved if tie.source in owners}
    leaves, treedef = leaves_by_path(params)
    kept = [
        leaf if path in owners or (is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)) else None
        for path, leaf in leaves.items()
    ]
    return jax.tree_util.tree_unflatten(treedef, kept)


def _check_arguments(call: str, optimizer: Any, params: PyTree, opt_state: PyTree, ties: Ties) -> None:
    """Raise TieError if the optimizer is none, or the parameters and their optimizer state are swapped."""
    if not isinstance(optimizer, Optimizer):
        found = f"optimizer: expected an optax optimizer, with init and update, got {type(optimizer).__name__}"
        raise TieError(f"{found}; the arguments are {call}")
    try:
        resolve(ties, params)
    except TieError:
        try:
            resolve(ties, opt_state)
        except TieError:
            return  # the first error is raised again, where the ties are resolved
        raise TieError(f"the parameters and the optimizer state are swapped; the arguments are {call}") from None


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
