"""Members of an ensemble: their state, how a device trains them, and their records by arm.

A member is one model: one seed in one arm. Members are laid out `[seed, arm, ...]` in training; metrics are
`[arm, seed, record, ...]`, transposed by `by_arm`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.training.step import TrainState
from tiejax.tying.leaves import tree_bytes

PyTree = Any
SplitMembers = list[list[PyTree]]  # [seed of a device][arm]


class EnsembleState(NamedTuple):
    """The state of all members, and the position of the run.

    Attributes:
        state: leaves `[seed, arm, ...]`.
        cursor: the next step to visit. Step `steps` is visited only to record the end; `steps + 1` means finished.
    """

    state: TrainState
    cursor: jax.Array

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self.state)
        if not leaves or any(np.ndim(leaf) < 2 or not hasattr(leaf, "dtype") for leaf in leaves):
            return f"EnsembleState(leaves={len(leaves)})"  # not laid out [seed, arm, ...]: split members, or no arrays
        seeds, arms = leaves[0].shape[:2]
        megabytes = tree_bytes(leaves) / 1e6
        shown = f"seeds={seeds}, arms={arms}, cursor={_shown(self.cursor)}"
        return f"EnsembleState({shown}, leaves={len(leaves)}, {megabytes:.1f} MB)"


def _shown(cursor: Any) -> str:
    try:
        return str(int(cursor))
    except (TypeError, ValueError, RuntimeError):  # traced, a shape, or donated
        return "?"


def _check(at_once: int | None) -> None:
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once: expected at least 1 seed, or None for all, got {at_once}")


@dataclasses.dataclass(frozen=True)
class Vmapped:
    """Train a device's members as one computation, by `jax.vmap`; best for the smallest models.

    Attributes:
        at_once: maximum number of seeds that a device trains at a time (default: all). A device with more seeds runs each chunk
            for one block of seeds after the other, so that the arrays of a step stay in the cache.
    """

    at_once: int | None = None

    def __post_init__(self) -> None:
        _check(self.at_once)

    def map(self, function: Callable[..., Any], *members: Any) -> Any:
        """Apply a function to every member along the leading axis."""
        return jax.vmap(function)(*members)


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Train a device's members one after the other, in a loop: quicker to compile, somewhat slower to run.

    Attributes:
        at_once: as in `Vmapped`.
    """

    at_once: int | None = None

    def __post_init__(self) -> None:
        _check(self.at_once)

    def map(self, function: Callable[..., Any], *members: Any) -> Any:
        """Apply a function to every member along the leading axis."""
        return jax.lax.map(lambda member: function(*member), members)


@dataclasses.dataclass(frozen=True)
class Unrolled:
    """Train a device's members one after the other, each compiled by itself and held in separate arrays (`SplitMembers`)."""

    at_once: ClassVar[None] = None  # never in blocks

    def map(self, function: Callable[..., Any], *members: Any) -> Any:
        """Apply a function to every member along the leading axis, or in a list, which holds split members; return a list."""

        def at(part: Any, place: int) -> Any:
            return part[place] if isinstance(part, list) else jax.tree.map(lambda leaf: leaf[place], part)

        number = len(jax.tree.leaves(members[0])[0]) if not isinstance(members[0], list) else len(members[0])
        return [function(*(at(part, place) for part in members)) for place in range(number)]


def map_split(function: Callable[[PyTree], PyTree], members: Any) -> Any:
    """Apply a function to every one of the split members."""
    return [[function(member) for member in arms] for arms in members]


def split_members(state: PyTree) -> SplitMembers:
    """Split the members `[seed, arm, ...]` of one device into separate arrays.

    Unrolled members train in this form: a step on joint arrays would copy all members to change one.
    """
    seeds, arms = jax.tree.leaves(state)[0].shape[:2]
    return [[jax.tree.map(lambda leaf: leaf[seed, arm], state) for arm in range(arms)] for seed in range(seeds)]  # noqa: B023


def join_members(members: Any) -> PyTree:
    """Stack split members of one device, or results computed from each, as `[seed, arm, ...]`."""

    def stacked(trees: list[PyTree]) -> PyTree:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    return stacked([stacked(arms) for arms in members])


def split_on_host(state: PyTree, devices: int) -> SplitMembers:
    """Split the members `[seed, arm, ...]` of all devices into separate arrays `[devices, ...]`.

    Seeds are dealt out in order: device d has seeds d * n to (d + 1) * n - 1, where n = seeds / devices.
    """
    by_device = jax.tree.map(lambda leaf: np.moveaxis(leaf.reshape(devices, -1, *leaf.shape[1:]), 0, 2), state)
    return split_members(by_device)


def join_on_host(members: SplitMembers) -> PyTree:
    """Return the inverse of `split_on_host`."""

    def join_devices(*leaves: np.ndarray) -> np.ndarray:
        whole = np.stack(leaves, axis=1)
        return whole.reshape(-1, *whole.shape[2:])

    arms = [jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *seed_members) for seed_members in members]
    return jax.tree.map(join_devices, *arms)


def all_finite(tree: PyTree) -> jax.Array:
    """Return whether every number in a tree is finite, as a boolean array."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def by_arm(records: Mapping[str, Mapping[str, np.ndarray]], prefixes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Transpose records `[record, seed, arm, ...]` to metrics `[arm, seed, record, ...]`; the field `step` stays as it is.

    records: recorder -> field -> array, as `Trained.records`. prefixes: recorder -> prefix of its fields' names in the result.
    Recorders without a prefix, or without records, are left out.
    """
    return {
        prefix + field: values if field == "step" else np.moveaxis(values, (2, 1, 0), (0, 1, 2))
        for recorder, prefix in prefixes.items()
        for field, values in records.get(recorder, {}).items()
    }
