"""States of training as named arrays, for files: the leaves of a tree by number, in the tree's order."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

PyTree = Any


def to_arrays(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """Return the leaves of a tree as `PREFIX/0`, `PREFIX/1`, ..."""
    return {f"{prefix}/{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def from_arrays(arrays: Mapping[str, np.ndarray], like: PyTree, prefix: str) -> PyTree:
    """Return the tree that `to_arrays` took apart.

    Args:
        arrays: Named arrays, others among them.
        like: A tree of the same structure, whose leaves have shapes and dtypes.
        prefix: The prefix of the names.

    Raises:
        ValueError: A leaf is missing, or has another shape or dtype.
    """
    leaves, treedef = jax.tree.flatten(like)
    found = [arrays.get(f"{prefix}/{number}") for number in range(len(leaves))]
    for number, (leaf, expected) in enumerate(zip(found, leaves, strict=True)):
        if leaf is None or (leaf.shape, leaf.dtype) != (expected.shape, expected.dtype):
            got = "nothing" if leaf is None else f"{leaf.dtype} {leaf.shape}"
            raise ValueError(f"{prefix}/{number}: expected {expected.dtype} {expected.shape}, got {got}")
    return jax.tree.unflatten(treedef, found)
