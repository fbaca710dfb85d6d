"""How members lie on devices: seeds over one axis of a mesh, the rows and parameters of a member over the other."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tiejax.training.apart import apart_on_host
from tiejax.training.ensemble import EnsembleState
from tiejax.training.sharding import DATA, spec

PyTree = Any
T = TypeVar("T")

SEEDS = "seeds"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Seeds over the devices of a mesh: padded to a multiple of their number by copies of the last, which nobody reads.

    at_once: the most seeds that a device trains at a time (default: all that it has); it has as many in every block.
    """

    mesh: jax.sharding.Mesh
    seeds: int
    at_once: int | None = None

    # Of what a feed gives: [seeds, steps of a window, rows, ...].
    fed_spec = PartitionSpec(SEEDS, None, DATA)

    @classmethod
    def over_all_devices(cls, seeds: int, devices_each: int, at_once: int | None = None) -> "Layout":
        """Return the layout of so many seeds over all devices, so many to a member; raises ValueError if they do not fit."""
        if jax.device_count() % devices_each:
            raise ValueError(f"devices: {jax.device_count()} cannot be shared out {devices_each} to a member")
        shape = jax.device_count() // devices_each, devices_each
        return cls(jax.make_mesh(shape, (SEEDS, DATA), axis_types=(jax.sharding.AxisType.Auto,) * 2), seeds, at_once)

    @property
    def blocks(self) -> int:
        """How many blocks of seeds a device trains, one after the other."""
        of_device = -(-self.seeds // self.mesh.shape[SEEDS])
        return 1 if self.at_once is None else -(-of_device // self.at_once)

    @property
    def padded(self) -> int:
        """The number of seeds with the copies."""
        return self.seeds + -self.seeds % (self.mesh.shape[SEEDS] * self.blocks)

    def pad(self, seeds: Sequence[T]) -> list[T]:
        """Return the seeds with the copies of the last."""
        return [*seeds, *[seeds[-1]] * (self.padded - len(seeds))]

    def specs(self, state: PyTree) -> PyTree:
        """Return how each leaf `[seed, arm, ...]` of the members' state lies on the mesh."""
        return jax.tree.map(lambda leaf: PartitionSpec(SEEDS, None, *spec(leaf.shape[2:], self.mesh.shape[DATA])), state)

    def place(self, tree: PyTree, specs: PyTree | None = None) -> PyTree:
        """Deal every leaf out over the devices: its first axis (the seeds), and what `specs` say."""

        specs = jax.tree.map(lambda leaf: PartitionSpec(SEEDS), tree) if specs is None else specs
        return jax.tree.map(self._put, jax.tree.map(self._with_copies, tree), specs)

    def _with_copies(self, leaf: Any) -> np.ndarray:
        host = np.asarray(leaf)
        return np.concatenate([host, np.repeat(host[-1:], self.padded - self.seeds, axis=0)])

    def _put(self, leaf: Any, how: PartitionSpec) -> jax.Array:
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, NamedSharding(self.mesh, how), lambda index: host[index])

    def place_members(self, members: EnsembleState) -> EnsembleState:
        """Deal members out over the devices; all have the cursor."""
        state = self.place(members.state, self.specs(members.state))
        return EnsembleState(state, self._put(np.asarray(members.cursor, np.int32), PartitionSpec()))

    def place_apart(self, members: EnsembleState) -> EnsembleState:
        """Deal members out as arrays of their own (`apart`): each leaf `[devices, ...]`, a member's part on each."""
        own = apart_on_host(jax.tree.map(self._with_copies, members.state), self.mesh.shape[SEEDS])
        specs = jax.tree.map(lambda leaf: PartitionSpec(SEEDS, *spec(leaf.shape[1:], self.mesh.shape[DATA])), own)
        state = jax.tree.map(self._put, own, specs)
        return EnsembleState(state, self._put(np.asarray(members.cursor, np.int32), PartitionSpec()))
