"""Placement of members on devices: a mesh with the axes `seeds` (over seeds) and `data` (within a member).

Each member is trained by one group of devices along `data`. They share the rows of its batches, its parameters and its
optimizer state. A leaf is split along the largest axis that the number of devices divides; small leaves are replicated.
Parameters are gathered where the loss reads them, so that automatic differentiation scatters the sum of their gradients, and
the optimizer updates each part in place. Each device computes its share of the mean loss: a loss function divides by counts
over all devices, computed with `total`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tiejax.training import cluster
from tiejax.training.members import EnsembleState, split_on_host
from tiejax.training.step import products_in
from tiejax.tying.switched import square_of

PyTree = Any
T = TypeVar("T")

SEEDS = "seeds"
DATA = "data"
SMALLEST = 4096  # leaves with fewer elements are replicated: splitting them costs more than it saves


def split_axis(shape: tuple[int, ...], devices: int) -> int | None:
    """Return the axis along which a leaf is split over `devices` devices, or None if it is replicated."""
    fitting = [axis for axis, length in enumerate(shape) if length % devices == 0]
    if devices == 1 or math.prod(shape) < SMALLEST or not fitting:
        return None
    return max(fitting, key=lambda axis: shape[axis])


def spec(shape: tuple[int, ...], devices: int) -> PartitionSpec:
    """Return the partition of a leaf over the devices of its member."""
    axis = split_axis(shape, devices)
    return PartitionSpec(*(DATA if place == axis else None for place in range(len(shape))))


def gather(parts: PyTree, shapes: PyTree, devices: int) -> PyTree:
    """Return the whole leaves, of `shapes`, from this device's parts; their gradients are summed over the devices."""

    def whole(part: jax.Array, shape: Any) -> jax.Array:
        axis = split_axis(shape.shape, devices)
        return _read_replicated(part) if axis is None else jax.lax.all_gather(part, DATA, axis=axis, tiled=True)

    return jax.tree.map(whole, parts, shapes)


@jax.custom_vjp
def _read_replicated(leaf: jax.Array) -> jax.Array:
    """Return a replicated leaf unchanged; its gradient is summed over the devices."""
    return leaf


def _forward(leaf: jax.Array) -> tuple[jax.Array, None]:
    return leaf, None


def _backward(residual: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.psum(gradient, DATA),)


_read_replicated.defvjp(_forward, _backward)


def leaf_squares(parts: PyTree, shapes: PyTree, devices: int) -> PyTree:
    """Return the sum of squares of each whole leaf, of `shapes`, from this device's parts; equal on all devices."""

    def square(part: jax.Array, shape: Any) -> jax.Array:
        part_sum = square_of(part)
        # A replicated leaf is complete on every device.
        return part_sum if split_axis(shape.shape, devices) is None else jax.lax.psum(part_sum, DATA)

    return jax.tree.map(square, parts, shapes)


def total(value: PyTree) -> PyTree:
    """Sum over the devices of a member, for sums and counts over a batch whose rows are split."""
    return jax.tree.map(lambda leaf: jax.lax.psum(jnp.asarray(leaf), DATA), value)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Distribution of seeds over the devices of a mesh, padded with copies of the last seed, whose results are dropped.

    mesh: with the axes `SEEDS` and `DATA`. at_once: maximum number of seeds that a device trains at a time (default: all); a
    device's seeds are divided into blocks of equal size.
    """

    mesh: jax.sharding.Mesh
    seeds: int
    at_once: int | None = None

    # Partition of a feed's arrays [seeds, steps of a window, rows, ...].
    fed_spec = PartitionSpec(SEEDS, None, DATA)

    @classmethod
    def over_all_devices(cls, seeds: int, devices_each: int, at_once: int | None = None) -> "Layout":
        """Return the layout of `seeds` seeds over all devices, `devices_each` per member; ValueError if they do not divide."""
        if jax.device_count() % devices_each:
            raise ValueError(
                f"devices: {jax.device_count()} devices cannot be divided into groups of {devices_each}; use a divisor"
            )
        shape = jax.device_count() // devices_each, devices_each
        return cls(jax.make_mesh(shape, (SEEDS, DATA), axis_types=(jax.sharding.AxisType.Auto,) * 2), seeds, at_once)

    @property
    def blocks(self) -> int:
        """The number of blocks of seeds that a device trains one after the other."""
        on_device = -(-self.seeds // self.mesh.shape[SEEDS])
        return 1 if self.at_once is None else -(-on_device // self.at_once)

    @property
    def padded(self) -> int:
        """The number of seeds, including padding."""
        return self.seeds + -self.seeds % (self.mesh.shape[SEEDS] * self.blocks)

    def pad(self, seeds: Sequence[T]) -> list[T]:
        """Return the seeds, padded with copies of the last."""
        return [*seeds, *[seeds[-1]] * (self.padded - len(seeds))]

    def specs(self, state: PyTree) -> PyTree:
        """Return the partition of each leaf `[seed, arm, ...]` of a state over the mesh."""
        return jax.tree.map(lambda leaf: PartitionSpec(SEEDS, None, *spec(leaf.shape[2:], self.mesh.shape[DATA])), state)

    def place(self, tree: PyTree, specs: PyTree | None = None) -> PyTree:
        """Pad leaves `[seed, ...]` and put them on the devices, partitioned by `specs` or, by default, along the seeds only."""

        specs = jax.tree.map(lambda leaf: PartitionSpec(SEEDS), tree) if specs is None else specs
        return jax.tree.map(self._put, jax.tree.map(self._padded_leaf, tree), specs)

    def _padded_leaf(self, leaf: Any) -> np.ndarray:
        host = np.asarray(leaf)
        return np.concatenate([host, np.repeat(host[-1:], self.padded - self.seeds, axis=0)])

    def _put(self, leaf: Any, how: PartitionSpec) -> jax.Array:
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, NamedSharding(self.mesh, how), lambda index: host[index])

    def place_members(self, members: EnsembleState, split: bool = False) -> EnsembleState:
        """Put members `[seed, arm, ...]` on the devices; the cursor is replicated.

        split: as separate arrays (`split_on_host`), leaves `[devices, ...]`.
        """
        if split:
            own = split_on_host(jax.tree.map(self._padded_leaf, members.state), self.mesh.shape[SEEDS])
            specs = jax.tree.map(lambda leaf: PartitionSpec(SEEDS, *spec(leaf.shape[1:], self.mesh.shape[DATA])), own)
            state = jax.tree.map(self._put, own, specs)
        else:
            state = self.place(members.state, self.specs(members.state))
        return EnsembleState(state, self._put(np.asarray(members.cursor, np.int32), PartitionSpec()))


def member_map(function: Callable[[PyTree, PyTree], PyTree], devices_each: int = 1) -> Callable[[PyTree, PyTree], PyTree]:
    """Return the function (members, shared) -> results of every member as numpy arrays `[seed, arm, ...]`.

    It is compiled once for all calls with one form, and runs on the devices over which training distributes the members. Matrix
    products of float32 are computed in full float32.

    function: (member, shared) -> tree of arrays. members: leaves `[seed, arm, ...]`. shared: arrays that are the same for all
    members; of numpy in a run of several processes. devices_each: devices per member; all of them receive its whole leaves and
    compute the same.
    """
    everywhere = PartitionSpec()

    @jax.jit
    def on_mesh(members: PyTree, shared: PyTree) -> PyTree:
        layout = Layout.over_all_devices(len(jax.tree.leaves(members)[0]), devices_each)
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), members)

        def map_one(member: PyTree, shared: PyTree) -> PyTree:
            whole = gather(member, shapes, devices_each) if devices_each > 1 else member
            with products_in("highest"):
                return function(whole, shared)

        def map_on_device(members: PyTree, shared: PyTree) -> PyTree:
            return jax.lax.map(lambda arms: jax.lax.map(lambda member: map_one(member, shared), arms), members)

        in_specs, out_specs = (layout.specs(members), everywhere), PartitionSpec(SEEDS)
        mapped = jax.shard_map(map_on_device, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return mapped(members, shared)

    def on_devices(members: PyTree, shared: PyTree) -> PyTree:
        seeds = len(jax.tree.leaves(members)[0])
        layout = Layout.over_all_devices(seeds, devices_each)
        results = cluster.collect(on_mesh(layout.place(members, layout.specs(members)), shared))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:seeds], results)

    return on_devices
