"""One step of an ensemble on a mesh of devices that need not be there: for whoever counts or compiles it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from tiejax.training.ensemble import Ensemble, SeedKey
from tiejax.training.layout import SEEDS
from tiejax.training.sharding import spec
from tiejax.training.step import TrainState

PyTree = Any


class StepOnMesh(NamedTuple):
    """A step, and what it takes.

    step: (numbers of seeds, members, what they are fed) -> members. state: shapes of the members, and lies: how they lie on the
    mesh.
    """

    step: Callable[..., TrainState]
    state: TrainState
    lies: PyTree


def step_on_mesh(ensemble: Ensemble, mesh: Mesh | AbstractMesh, seeds: int, fed_spec: PyTree) -> StepOnMesh:
    """Return the first step of so many seeds, as each device of a mesh (SEEDS, DATA) makes its part of it.

    fed_spec: how what is fed lies on the mesh. Where the ensemble has `train_steps`, that makes it.
    """
    state = jax.eval_shape(lambda: ensemble.start(range(seeds))).state
    lies = jax.tree.map(lambda leaf: PartitionSpec(SEEDS, None, *spec(leaf.shape[2:], ensemble.devices)), state)

    def step(names: jax.Array, state: TrainState, fed: PyTree) -> TrainState:
        keys = SeedKey(jax.vmap(jax.random.key)(names), jnp.zeros_like(names, jnp.int32))
        if ensemble.train_steps is not None:
            return ensemble.train_steps(keys, state, jnp.int32(0), jnp.int32(1))
        return ensemble.step(keys, state, jnp.int32(0), fed)[0]

    local = jax.shard_map(step, mesh=mesh, in_specs=(PartitionSpec(SEEDS), lies, fed_spec), out_specs=lies, check_vma=False)
    return StepOnMesh(local, state, lies)
