"""Stored parameters whose file format cannot hold `None`: the keys of targets are put back."""

from collections.abc import Mapping
from typing import Any

import jax

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import NNX_SUFFIX
from tiejax.tying.patterns import expand
from tiejax.tying.tie import PyTree, Tie, Ties, as_ties, leaves_by_path, path_name


def with_targets(stored: PyTree, ties: Ties) -> PyTree:
    """Return stored parameters with `None` at every target whose key is missing from its dictionary.

    A tree that holds `None` anywhere has kept its keys and is returned as it is. So are trees whose missing part is not in
    dictionaries; `resolve` then names the missing leaf. Ties with several targets by pattern cannot be filled: a pattern does
    not name what is missing.

    Args:
        stored: Stored parameters.
        ties: The ties that were passed to `store`.

    Returns:
        A tree of the same containers.
    """
    leaves = leaves_by_path(stored)[0]
    if any(leaf is None for leaf in leaves.values()):
        return stored
    levels = {path_name(path): len(path) for path, _ in jax.tree_util.tree_flatten_with_path(stored)[0]}
    pending = [pair for tie in as_ties(ties) for pair in _pairs(tie, leaves)]
    while pending:
        # Sources first: the target's path is completed as its source's is, and a source may itself be missing.
        ready = [pair for pair in pending if _name(pair[0], levels) in levels] or pending
        pending = [pair for pair in pending if pair not in ready]
        for source, target in ready:
            if _name(target, levels) not in levels:
                own = _name(source, levels)
                target = f"{target}{NNX_SUFFIX}" if own != source else target
                levels[target] = levels.get(own, max(levels.values(), default=1))
                stored = _with_none(stored, _keys(stored, target, levels[target]))
    return stored


def _pairs(tie: Tie, leaves: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the sources and targets of a tie, as far as the sources say."""
    if tie.source.count("*") != tie.target.count("*"):
        return []
    try:
        return expand(tie.source, tie.target, leaves)
    except TieError:  # raised again, with the name of the tie, by `resolve`
        return []


def _name(path: str, paths: Mapping[str, int]) -> str:
    """Return a path with the `/value` of an NNX variable, if that is a leaf."""
    return f"{path}{NNX_SUFFIX}" if path not in paths and f"{path}{NNX_SUFFIX}" in paths else path


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
