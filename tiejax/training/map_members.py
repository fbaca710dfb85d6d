"""A function of each member, computed where the members lie: seeds dealt out over the devices, as in training."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from tiejax.training import cluster
from tiejax.training.layout import SEEDS, Layout
from tiejax.training.precision import products_in
from tiejax.training.sharding import gather

PyTree = Any


def map_members(function: Callable[[PyTree, PyTree], PyTree], members: PyTree, shared: PyTree, devices_each: int = 1) -> PyTree:
    """Return `function(member, shared)` of every member `[seed, arm, ...]`, as numpy arrays `[seed, arm, ...]`.

    shared: arrays that all members are given. devices_each: devices over which a member's leaves are split between steps; here
    they are put together again, and each of the devices computes the same. Products of float32 are formed in float32.
    """
    seeds = len(jax.tree.leaves(members)[0])
    layout = Layout.over_all_devices(seeds, devices_each)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), members)
    specs, everywhere = layout.specs(members), PartitionSpec()

    def of_member(member: PyTree, shared: PyTree) -> PyTree:
        whole = gather(member, shapes, devices_each) if devices_each > 1 else member
        with products_in("highest"):
            return function(whole, shared)

    def of_device(members: PyTree, shared: PyTree) -> PyTree:
        return jax.lax.map(lambda arms: jax.lax.map(lambda member: of_member(member, shared), arms), members)

    mapped = jax.shard_map(
        of_device, mesh=layout.mesh, in_specs=(specs, everywhere), out_specs=PartitionSpec(SEEDS), check_vma=False
    )
    results = cluster.collect(jax.jit(mapped)(layout.place(members, specs), shared))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:seeds], results)
