"""Kinds of leaves: arrays and their shapes, partitions of arrays over devices, and leaves that are not arrays."""

from typing import Any

import jax
from jax.sharding import PartitionSpec, Sharding

NNX_SUFFIX = "/value"  # ends the path of the leaf of an NNX variable


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, traced or not, or the shape and dtype of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_concrete(leaf: Any) -> bool:
    """Whether a leaf is an array, traced or not, but not only a shape and dtype."""
    return is_array(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct)


def is_partition(leaf: Any) -> bool:
    """Whether a leaf says how an array is partitioned: a `PartitionSpec` or a sharding."""
    return isinstance(leaf, PartitionSpec | Sharding)


def is_tieable(leaf: Any) -> bool:
    """Whether a pattern matches a leaf. Numbers, functions and `None` are left out: they are settings, not parameters."""
    return is_array(leaf) or is_partition(leaf)


def beside(x: Any, like: Any) -> Any:
    """Return an array on the devices of another one, so that both can be operands; traced arrays are returned as they are."""
    arrays = all(isinstance(one, jax.Array) and not isinstance(one, jax.core.Tracer) for one in (x, like))
    return jax.device_put(x, like.sharding) if arrays and x.sharding.device_set != like.sharding.device_set else x


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number."""
    return isinstance(leaf, int | float | complex)
