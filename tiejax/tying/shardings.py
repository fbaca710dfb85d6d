"""The partition of a tie's target over devices, from that of its source."""

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from tiejax.tying.errors import TieError
from tiejax.tying.transforms import AnyTransform, described, keeps_places, parts


def partition_of_target(transform: AnyTransform, partition: Any) -> Any:
    """Return the partition of the target's array.

    A `PartitionSpec` must have an entry for every axis, unless it is empty (replicated): it does not say how many axes the
    array has.

    Args:
        transform: The transform of the tie.
        partition: The source's `PartitionSpec` or sharding.

    Returns:
        A partition of the same type.

    Raises:
        TieError: The target's partition cannot be derived.
    """
    if keeps_places(transform) or isinstance(partition, SingleDeviceSharding):
        return partition
    if isinstance(partition, NamedSharding):
        spec = partition_of_target(transform, partition.spec)
        return NamedSharding(partition.mesh, spec, memory_kind=partition.memory_kind)
    if not isinstance(partition, PartitionSpec):
        raise TieError(f"{described(transform)} of a {type(partition).__name__} is not known; use a NamedSharding")
    axes: Any = tuple(partition)
    if all(axis is None for axis in axes):
        return PartitionSpec()
    for part in parts(transform):
        axes = part.partition(axes)
        if axes is None:
            raise TieError(
                f"{described(transform)} of {partition} is not known; write an entry for every axis, as in P('x', None), or "
                "give the target's partition yourself"
            )
    return PartitionSpec(*axes)
