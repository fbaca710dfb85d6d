"""Ties that are there already: in a tree whose leaves are one array, or equal, and in what others say of their models."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.tie import PyTree, Tie, leaves_by_path


def find_ties(tree: PyTree, equal: bool = True) -> list[Tie]:
    """Return the ties of a tree as it is: leaves that are one array and, if `equal`, arrays that are equal bit for bit.

    Two modules that share a variable, as of NNX, have one array in two places. Matrices are also compared transposed. The
    first leaf of each group, in the order of the tree, is the source of all others. Arrays of one repeated number, as biases
    that start as zeros, are equal by chance: they are ties only if they are one array. Nothing is found in traced arrays.
    """
    leaves = {path: leaf for path, leaf in leaves_by_path(tree)[0].items() if _is_array(leaf)}
    sources: dict[Any, str] = {}
    ties = []
    for path, leaf in leaves.items():
        own, turned = _names(leaf, equal)
        if source := next((sources[name] for name in own if name in sources), None):
            ties.append(Tie(source, path))
        elif turned in sources:
            ties.append(Tie(sources[turned], path, transform="transpose"))
        else:
            sources |= dict.fromkeys(own, path)
    return ties


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array) and not isinstance(leaf, jax.core.Tracer)


def _names(leaf: Any, equal: bool) -> tuple[list[Any], Any]:
    """Return names that an array shares with those that are the same, and the name of those that it is the transpose of."""
    one = ("object", id(leaf))
    if not equal or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):  # random keys are not compared
        return [one], None
    array = np.asarray(leaf)
    if array.size < 2 or (array == array.flat[0]).all():
        return [one], None
    turned = array.swapaxes(-1, -2) if array.ndim > 1 else None
    return [one, _contents(array)], None if turned is None else _contents(turned)


def _contents(array: np.ndarray) -> tuple[Any, ...]:
    return array.shape, str(array.dtype), hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def tie_between(tree: PyTree, source: Callable[[Any], Any], target: Callable[[Any], Any], **how: Any) -> Tie:
    """Return the tie between the leaves of a tree that two functions select, as `lambda model: model.embed.weight`.

    how: the other fields of `Tie`. Raises TieError if a function selects no leaf.
    """
    leaves, treedef = leaves_by_path(tree)
    marked = jax.tree_util.tree_unflatten(treedef, [_Mark(path) for path in leaves])

    def path(select: Callable[[Any], Any], role: str) -> str:
        selected = select(marked)
        found = jax.tree.leaves(selected)  # a variable of NNX is a tree of one leaf
        if len(found) != 1 or not isinstance(found[0], _Mark):
            raise TieError(f"{role}: selects {type(selected).__name__}, no leaf; there are {', '.join(leaves)}")
        return found[0].path

    return Tie(path(source, "source"), path(target, "target"), **how)


class _Mark:
    """Stands for a leaf, and knows its path."""

    def __init__(self, path: str) -> None:
        self.path = path


def ties_of_keys(
    keys: Mapping[str, str], names: Callable[[str], str] = lambda name: name.replace(".", "/"), **how: Any
) -> list[Tie]:
    """Return ties from a mapping of tied keys as the transformers library has it: target -> source, with dots.

    names: a key -> the path of that leaf here. how: the other fields of `Tie`, of all of them. Keys that are patterns are
    refused with a TieError: write `*` in a `Tie`.
    """
    for name in (*keys, *keys.values()):
        if not re.fullmatch(r"[\w.]+", name):
            raise TieError(f"{name}: is a pattern, not the name of a tensor")
    return [Tie(names(source), names(target), **how) for target, source in keys.items()]
