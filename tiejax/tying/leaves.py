"""Kinds of leaves: arrays and their shapes, partitions of arrays over devices, labels, and leaves that are not arrays."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, Sharding

NNX_SUFFIX = "/value"  # ends the path of the leaf of an NNX variable


def nnx_variables(paths: Iterable[str]) -> frozenset[str]:
    """Return the paths that end in the `/value` of an NNX variable: those of leaves by that name without siblings."""
    listed = list(paths)
    parents = {path.removesuffix(NNX_SUFFIX) for path in listed if path.endswith(NNX_SUFFIX)}
    if not parents:
        return frozenset()
    for path in listed:
        while path:
            path, _, name = path.rpartition("/")
            if f"/{name}" != NNX_SUFFIX:
                parents.discard(path)
    return frozenset(f"{path}{NNX_SUFFIX}" for path in parents)


def tree_bytes(tree: Any) -> int:
    """Return the bytes of all arrays of a tree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, traced or not, or the shape and dtype of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.bool_)


def is_concrete(leaf: Any) -> bool:
    """Whether a leaf is an array, traced or not, but not only a shape and dtype."""
    return is_array(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct)


def is_trained(leaf: Any) -> bool:
    """Whether a leaf is one that optimizers train: a floating-point or complex array, or the shape and dtype of one."""
    return is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def bits(array: Any) -> np.ndarray:
    """Return an array for comparisons bit by bit; of random keys, their data."""
    is_key = jax.dtypes.issubdtype(jnp.result_type(array), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def is_partition(leaf: Any) -> bool:
    """Whether a leaf says how an array is partitioned: a `PartitionSpec` or a sharding."""
    return isinstance(leaf, PartitionSpec | Sharding)


def is_label(leaf: Any) -> bool:
    """Whether a leaf is of a mask (`optax.masked`) or of labels (`optax.multi_transform`): a boolean, a string or an enum."""
    return isinstance(leaf, bool | np.bool_ | str | enum.Enum)


def tieable(leaves: Mapping[str, Any]) -> dict[str, None]:
    """Return the paths of the leaves that patterns match, in order: arrays and partitions or, in a tree without any, labels.

    Numbers, functions and `None` are left out, and labels beside arrays: they are settings, not parameters.
    """
    found = dict.fromkeys(path for path, leaf in leaves.items() if is_array(leaf) or is_partition(leaf))
    return found or dict.fromkeys(path for path, leaf in leaves.items() if is_label(leaf))


def beside(x: Any, like: Any) -> Any:
    """Return an array that is partitioned like another one, whose operand it can be, or whose place it takes.

    Traced arrays are returned as they are, except on a mesh of explicit axes.
    """
    if not (isinstance(x, jax.Array) and isinstance(like, jax.Array)):
        return x
    wanted = _explicit(like)
    if isinstance(x, jax.core.Tracer) or isinstance(like, jax.core.Tracer):
        return x if wanted is None else jax.sharding.reshard(x, wanted)
    return x if x.sharding == like.sharding else jax.device_put(x, like.sharding)


def _explicit(array: jax.Array) -> Any | None:
    """Return how an array is partitioned if that is part of its type, as on a mesh with an axis of the type Explicit."""
    sharding = getattr(jax.typeof(array), "sharding", None) if hasattr(jax, "typeof") else None
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    return sharding if any(getattr(kind, "name", "") == "Explicit" for kind in kinds) else None


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number."""
    return isinstance(leaf, int | float | complex)
