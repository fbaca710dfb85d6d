"""Parameters as named arrays, and back: what a stage leaves in its .npz file."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

PyTree = Any


def named(params: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """Return the leaves of nested dictionaries by `prefix/path`; leaves that are None are left out."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}": np.asarray(leaf) for path, leaf in leaves}


def unnamed(arrays: Mapping[str, np.ndarray], prefix: str) -> PyTree:
    """Return the nested dictionaries whose leaves are named `prefix/path`."""
    tree: dict[str, Any] = {}
    for name, leaf in arrays.items():
        if name.startswith(f"{prefix}/"):
            *path, last = name.split("/")[1:]
            place = tree
            for part in path:
                place = place.setdefault(part, {})
            place[last] = leaf
    return tree
