"""Parameters as named arrays, and back: what a stage leaves in its .npz file."""

from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np

PyTree = Any


def named(params: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """Return the leaves of nested dictionaries by `prefix/path`; leaves that are None are left out."""
    leaves = flax.traverse_util.flatten_dict({prefix: params}, sep="/")
    return {name: np.asarray(leaf) for name, leaf in leaves.items() if leaf is not None}


def unnamed(arrays: Mapping[str, np.ndarray], prefix: str) -> PyTree:
    """Return the nested dictionaries whose leaves are named `prefix/path`."""
    own = {name: leaf for name, leaf in arrays.items() if name.startswith(f"{prefix}/")}
    return flax.traverse_util.unflatten_dict(own, sep="/")[prefix]
