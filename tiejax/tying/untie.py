r"""Ending a tie, and beginning one, in mid-training: what parameters and optimizer state become.

When a tie ends, both leaves go on from the shared value. What the optimizer then remembers of each is a policy:

* `copy`: both keep what it remembers of the shared leaf, moments and step count;
* `zero`: it remembers nothing of the new leaf, whose bias correction restarts, as for a leaf that was just made;
* `zero-keep-count`: its moments are 0 and its step count goes on. Adam's first updates are then too large, as a first moment
  recovers in 10 steps what takes the second 1,000: a hidden spike;
* `split`: each leaf gets what the optimizer would remember of its own use's gradient, kept apart from step 0 (`use_states`).

When a tie begins, the shared leaf and what is remembered of it are the mean of both, the source's or the target's.

`untie` and `retie` are for parameters stored once, `part` and `join` for ties that are switched (`switched`): shapes stay.
All are pure, may be traced, and find what belongs to a leaf in any optax state by its path.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tiejax.tying.errors import TieError
from tiejax.tying.policies import Keep, New, Policy
from tiejax.tying.store import store, view
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path, resolve


def only_tied(tree: PyTree, ties: Sequence[Tie]) -> PyTree:
    """Return a tree of full parameters, or of their gradients, with `None` for every leaf that no tie names.

    `optimizer.init` of it is the state that `split` needs; it is updated at every step with the gradients of each use.
    """
    leaves, treedef = leaves_by_path(tree)
    named = {path for tie in resolve(ties, tree) for path in (tie.source, tie.target)}
    return jax.tree_util.tree_unflatten(treedef, [leaf if path in named else None for path, leaf in leaves.items()])


def untie(
    optimizer: optax.GradientTransformation,
    stored: PyTree,
    opt_state: PyTree,
    ties: Sequence[Tie],
    policy: Policy = "copy",
    new: New = "target",
    use_states: PyTree = None,
) -> tuple[PyTree, PyTree]:
    """Return full parameters and their optimizer state, for training on untied, from those that `store` keeps once.

    new: which leaf of a tie leaves. use_states: for `split`, as `only_tied` describes.
    Raises TieError as `part` does, and if a target has a state of a kind that its source has not.
    """
    resolved = resolve(ties, stored)
    # A copy, since one buffer in two leaves could not be donated.
    params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), view(stored, ties))
    fresh, treedef = leaves_by_path(optimizer.init(params))
    old, _ = leaves_by_path(opt_state)
    owners = _owners(fresh, params)
    by_target = {tie.target: tie for tie in resolved}
    leaves = {}
    for path, like in fresh.items():
        tie = by_target.get(owners.get(path, ("", ""))[1])
        if tie is not None:
            source = f"{owners[path][0]}{tie.source}"
            if old.get(source) is None:
                raise TieError(f"{tie}: the optimizer state has {path} and nothing at {source} to start it from")
            leaves[path] = jnp.array(_turned(tie, old[source], path), copy=True)
        elif like is not None and old.get(path) is None:
            raise TieError(f"the optimizer state has no {path}: it belongs to another optimizer or other parameters")
        else:
            leaves[path] = old[path]
    state = jax.tree_util.tree_unflatten(treedef, leaves.values())
    return params, part(optimizer, params, state, ties, policy, new, use_states)


def retie(
    optimizer: optax.GradientTransformation, params: PyTree, opt_state: PyTree, ties: Sequence[Tie], keep: Keep = "mean"
) -> tuple[PyTree, PyTree]:
    """Return stored parameters and their optimizer state, for training on tied, from full ones; raises TieError as `join`."""
    params, opt_state = join(params, opt_state, ties, keep)
    stored, joined = store(params, ties), leaves_by_path(opt_state)[0]
    fresh, treedef = leaves_by_path(jax.eval_shape(optimizer.init, stored))
    missing = [path for path, leaf in fresh.items() if leaf is not None and joined.get(path) is None]
    if missing:
        raise TieError(f"the optimizer state has no {missing[0]}: it belongs to another optimizer or other parameters")
    leaves = [None if leaf is None else joined[path] for path, leaf in fresh.items()]
    return stored, jax.tree_util.tree_unflatten(treedef, leaves)


def part(
    optimizer: optax.GradientTransformation,
    params: PyTree,
    opt_state: PyTree,
    ties: Sequence[Tie],
    policy: Policy,
    new: New = "target",
    use_states: PyTree = None,
) -> PyTree:
    """Return the optimizer state of full parameters at the end of their ties.

    Raises TieError as `resolve` does; for `zero`, if the state counts the steps of all leaves together; for `split`, without
    `use_states`; ValueError for another policy.
    """
    if policy == "copy":
        return opt_state
    leaves, treedef = leaves_by_path(opt_state)
    owners, resolved = _owners(leaves, params), resolve(ties, params)
    if policy == "split":
        if use_states is None:
            raise TieError("split: needs the optimizer state of each use's gradients, kept from step 0 (see only_tied)")
        given, leaving = leaves_by_path(use_states)[0], {path for tie in resolved for path in (tie.source, tie.target)}
    elif policy in ("zero", "zero-keep-count"):
        given, leaving = leaves_by_path(optimizer.init(params))[0], {getattr(tie, new) for tie in resolved}
    else:
        raise ValueError(f"policy: copy, zero, zero-keep-count or split, got {policy!r}")
    for path, (prefix, owner) in owners.items():
        if owner not in leaving or leaves[path] is None:
            continue
        kind = prefix.rstrip("/")
        parent = kind[: -len(kind.split("/")[-1])]
        if policy == "zero" and leaves.get(f"{parent}count") is not None:
            raise TieError(
                f"zero: {parent}count counts the steps of all leaves together, so {owner} cannot restart; take an optimizer "
                "that counts for each leaf (tiejax.training.make_optimizer(..., counts='leaf')), or zero-keep-count"
            )
        if policy == "zero-keep-count" and kind.split("/")[-1] == "count":
            continue
        if given.get(path) is None:
            raise TieError(f"{policy}: there is nothing for {path} of the optimizer state")
        leaves[path] = given[path]
    return jax.tree_util.tree_unflatten(treedef, leaves.values())


def join(params: PyTree, opt_state: PyTree, ties: Sequence[Tie], keep: Keep = "mean") -> tuple[PyTree, PyTree]:
    """Return full parameters and optimizer state at the beginning of ties: both leaves of each equal, and their state.

    keep: `mean` of both, or the `source`'s or the `target`'s. Step counts are not averaged: the mean has the source's.
    Raises TieError as `resolve` does, and ValueError for another `keep`.
    """
    if keep not in ("mean", "source", "target"):
        raise ValueError(f"keep: mean, source or target, got {keep!r}")
    resolved = resolve(ties, params)
    by_source: dict[str, list[Tie]] = {}
    for tie in resolved:
        by_source.setdefault(tie.source, []).append(tie)

    def joined(tree: PyTree, owners: dict[str, tuple[str, str]]) -> PyTree:
        leaves, treedef = leaves_by_path(tree)
        for path, (prefix, owner) in owners.items():
            if owner not in by_source or leaves[path] is None:
                continue
            group = by_source[owner]
            others = []
            for tie in group:
                other = leaves.get(f"{prefix}{tie.target}")
                if other is None:
                    raise TieError(f"{tie}: the optimizer state has {path} and no {prefix}{tie.target}")
                others.append(_turned(tie, other, path))
            shared = leaves[path]
            if keep == "target":
                shared = others[-1]
            elif keep == "mean" and jnp.issubdtype(jnp.result_type(shared), jnp.inexact):
                shared = sum(others, start=shared) / (1 + len(others))
            leaves[path] = shared
            for tie in group:
                leaves[f"{prefix}{tie.target}"] = _turned(tie, shared, path)
        return jax.tree_util.tree_unflatten(treedef, leaves.values())

    state_owners = _owners(leaves_by_path(opt_state)[0], params)
    param_owners = {path: ("", path) for path in leaves_by_path(params)[0]}
    return joined(params, param_owners), joined(opt_state, state_owners)


def _owners(state: dict[str, Any], params: PyTree) -> dict[str, tuple[str, str]]:
    """Say of every leaf of an optimizer state that belongs to a parameter: what stands before its path, and whose it is."""
    paths, owners = set(leaves_by_path(params)[0]), {}
    for name in state:
        parts = name.split("/")
        # The longest match: `mu/head/table` is head/table's even where there is a parameter called table.
        for place in range(len(parts)):
            owner = "/".join(parts[place:])
            if owner in paths:
                owners[name] = (name[: len(name) - len(owner)], owner)
                break
    return owners


def _turned(tie: Tie, leaf: Any, path: str) -> Any:
    """Apply a tie's transform to what the optimizer keeps of a leaf; a number, as a count, needs none."""
    if tie.transform == "identity" or jnp.ndim(leaf) == 0:
        return leaf
    if jnp.ndim(leaf) < 2:
        raise TieError(f"{tie}: {path} of the optimizer state, {jnp.shape(leaf)}, cannot be transposed")
    return apply_transform(tie, leaf)
