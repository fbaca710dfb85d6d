"""Stored parameters whose file format cannot hold `None`: the keys of targets are put back."""

from collections.abc import Mapping
from typing import Any

import jax

from tiejax.tying.leaves import tieable
from tiejax.tying.patterns import reached
from tiejax.tying.tie import PyTree, path_name
from tiejax.tying.ties import TiesLike, as_ties


def with_targets(stored: PyTree, leaves: Mapping[str, Any], ties: TiesLike) -> PyTree:
    """Return stored parameters with `None` at every target whose key is missing from its dictionary.

    A tree that holds `None` anywhere has kept its keys and is returned as it is. So are trees whose missing part is not in
    dictionaries; `resolve` then names the missing leaf. Ties with several targets by pattern cannot be filled: a pattern does
    not name what is missing.

    Args:
        stored: Stored parameters.
        leaves: Their leaves by path.
        ties: The ties that were passed to `store`.

    Returns:
        A tree of the same containers.
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

    If keys of the tree contain slashes, as the names of Haiku's modules or of a flat dictionary, there are as many keys as on
    the way to the tie's source, `depth`, and the first one takes the remaining slashes.
    """
    has_slashes = isinstance(tree, Mapping) and any("/" in str(key) for key in tree)
    return path.rsplit("/", depth - 1) if has_slashes else path.split("/")


def _with_none(tree: Any, keys: list[str]) -> Any:
    """Return nested dictionaries with `None` under a sequence of keys; anything else unchanged."""
    if not isinstance(tree, Mapping):
        return tree
    key = next((own for own in tree if str(own) == keys[0]), keys[0])
    inner = _with_none(tree.get(key, {}), keys[1:]) if keys[1:] else None
    return type(tree)({**tree, key: inner})  # type: ignore[call-arg]
