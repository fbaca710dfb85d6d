"""Conversion of parameters to named arrays, as in the .npz file of a stage, and back."""

from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np

PyTree = Any


def named(params: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """Flatten nested dictionaries to arrays named `prefix/path`; None leaves are left out."""
    leaves = flax.traverse_util.flatten_dict({prefix: params}, sep="/")
    return {name: np.asarray(leaf) for name, leaf in leaves.items() if leaf is not None}


def unnamed(arrays: Mapping[str, np.ndarray], prefix: str) -> PyTree:
    """Rebuild nested dictionaries from the arrays named `prefix/path`."""
    chosen = {name: leaf for name, leaf in arrays.items() if name.startswith(f"{prefix}/")}
    return flax.traverse_util.unflatten_dict(chosen, sep="/")[prefix]
