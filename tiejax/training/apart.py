"""Members as arrays of their own, as unrolled ones train: in arrays of several, every step would copy what it has not changed.

Each has the place (seed of its device, arm), the seeds being dealt out over the devices in order.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
Apart = list[list[PyTree]]  # [seed of a device][arm]


def each(function: Callable[[PyTree], PyTree], members: Any) -> Any:
    """Return what a function gives for each member."""
    return [[function(member) for member in arms] for arms in members]


def apart(state: PyTree) -> Apart:
    """Return members `[seed, arm, ...]` of one device as arrays of their own."""
    seeds, arms = jax.tree.leaves(state)[0].shape[:2]
    return [[jax.tree.map(lambda leaf: leaf[seed, arm], state) for arm in range(arms)] for seed in range(seeds)]  # noqa: B023


def together(members: Any) -> PyTree:
    """Return members of one device that are arrays of their own, or what was computed of them, as `[seed, arm, ...]`."""
    return stack_members([stack_members(arms) for arms in members])


def stack_members(members: list[PyTree]) -> PyTree:
    """Return a list of trees as one tree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


def apart_on_host(state: PyTree, devices: int) -> Apart:
    """Return members `[seed, arm, ...]` of so many devices as arrays of their own, of leaves `[devices, ...]`."""
    by_device = jax.tree.map(lambda leaf: np.moveaxis(leaf.reshape(devices, -1, *leaf.shape[1:]), 0, 2), state)
    return apart(by_device)


def together_from_host(members: Apart) -> PyTree:
    """Return the inverse of `apart_on_host`."""

    def of_all(*leaves: np.ndarray) -> np.ndarray:
        whole = np.stack(leaves, axis=1)
        return whole.reshape(-1, *whole.shape[2:])

    arms = [jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *of_seed) for of_seed in members]
    return jax.tree.map(of_all, *arms)
