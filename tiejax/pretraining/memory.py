"""What the pre-training of an encoder takes of the memory of each device, of a mesh that need not be there.

A member lies on its devices as `training.sharding` says: rows split, every leaf of parameters and moments split along its
largest axis that fits, parameters gathered where the loss reads them. The step is traced on an abstract mesh and the arrays
that are alive at its worst moment are counted (`live_arrays.py`): nothing is compiled, and no array is made.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend import core
from jax.sharding import AbstractMesh, PartitionSpec

from tiejax import training
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.pretraining.live_arrays import ACTIVATIONS, KINDS, OPTIMIZER, PARAMETERS, alive
from tiejax.pretraining.masked_lm import MaskedLM
from tiejax.pretraining.step_plan import MOST_PLACES
from tiejax.text.masking import MaskedRows, slots_for
from tiejax.training.layout import SEEDS
from tiejax.training.sharding import split_axis
from tiejax.training.step import TrainState
from tiejax.training.step_on_mesh import step_on_mesh

PyTree = Any


class MemoryPlan(NamedTuple):
    """Bytes on one device at the worst moment of a step.

    parameters: the parts that lie there, and the gathered copies that are alive. gradients: in full before they are
    scattered, their parts behind it. optimizer: its state. activations: all else, the window of batches that the host fed
    included. output_table: how the output embedding lies on the devices, in words.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    output_table: str

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """What is pre-trained, and how.

    shape, vocabulary: of the encoder and its tables; a coupled table is stored once. length: tokens of a row.
    devices: that train a member together. members: that each such group of devices trains, one after the other.
    slots: rows of one device -> slots for their masked tokens (default: for rows without padding or special tokens).
    dtype: of the computation. max_positions: default, the length of a row. optimizer: default, AdamW. max_norm: of the
    gradients. window: steps whose batches lie on the devices at a time.
    Raises ValueError where there is no such shape.
    """

    shape: Shape
    vocabulary: int
    length: int
    devices: int = 1
    members: int = 1
    slots: Callable[[int], int] | None = None
    rematerialise: bool = False
    dtype: Any = None
    max_positions: int | None = None
    optimizer: optax.GradientTransformation | None = None
    max_norm: float | None = 1.0
    window: int = 64

    def __post_init__(self) -> None:
        if problem := self.shape.problem():
            raise ValueError(problem)


def plan_memory(of: Pretraining, rows: int) -> MemoryPlan:
    """Return what a step of so many rows, over all devices of a member, takes of each of them."""
    here = -(-rows // of.devices)
    plan = plan_ensemble(*shapes_of_step(of, rows), of.members)
    token = 2 if of.vocabulary <= 2**16 else 4
    window = of.members * of.window * here * (of.length * (token + 2) + 4)  # tokens, segments, number of the row
    return plan._replace(activations=plan.activations + window)


def largest_batch(of: Pretraining, memory: int) -> int:
    """Return the most rows of a step, a multiple of the devices, that fit the memory (bytes) of a device.

    Raises ValueError that begins with `memory` where not even one row a device fits.
    """

    def taken(here: int) -> int:
        return plan_memory(of, here * of.devices).total

    fits, most = 1, MOST_PLACES // (of.length * of.devices)
    of_fits = taken(fits)
    if of_fits > memory:
        raise ValueError(f"memory: one row a device takes {of_fits:,} bytes, there are {memory:,}")
    fails, of_fails = most + 1, taken(most)
    if of_fails <= memory:
        return most * of.devices
    while fails - fits > 1:
        # About linear in the rows: where a line between the two meets the memory.
        guess = fits + int((fails - fits) * (memory - of_fits) / (of_fails - of_fits))
        guess = min(max(guess, fits + 1), fails - 1)
        size = taken(guess)
        fits, of_fits, fails, of_fails = (guess, size, fails, of_fails) if size <= memory else (fits, of_fits, guess, size)
    return fits * of.devices


def shapes_of_step(of: Pretraining, rows: int) -> tuple[training.Ensemble, PyTree]:
    """Return the ensemble, and the shapes of what one device is fed in a step of so many rows over all devices of a member."""
    here = -(-rows // of.devices)
    slots = slots_for(here * of.length) if of.slots is None else of.slots(here)
    return _ensemble(of), _masked_rows(here, of.length, slots)


def _ensemble(of: Pretraining) -> training.Ensemble:
    """Return the members, who are fed their masked rows."""
    positions = of.length if of.max_positions is None else of.max_positions
    model = bert.build(of.shape, of.vocabulary, positions, rematerialise=of.rematerialise, dtype=of.dtype)
    objective = MaskedLM(model, of.shape.coupled)
    return training.Ensemble(
        init=objective.init,
        sample=lambda seed_key, step, masked: masked,
        loss=objective.loss,
        optimizer=of.optimizer or training.make_optimizer("adamw", optax.constant_schedule(1e-3), 0.01),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        steps=1,
        recorders={},
        max_norm=of.max_norm,
        members="scanned",
        devices=of.devices,
    )


def plan_ensemble(ensemble: training.Ensemble, fed: PyTree, seeds: int = 1) -> MemoryPlan:
    """Return what a step of an ensemble takes of each device, for so many seeds on a group of `ensemble.devices`.

    fed: shapes of what one device is fed for one seed and step. Batches that wait and what recorders do are not counted.
    """
    mesh = AbstractMesh((1, ensemble.devices), (SEEDS, training.DATA))
    local, state, _ = step_on_mesh(ensemble, mesh, seeds, PartitionSpec(SEEDS))
    names = jax.ShapeDtypeStruct((seeds,), jnp.uint32)
    fed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype), fed)
    traced = jax.make_jaxpr(local)(names, state, fed).jaxpr
    equation = next(equation for equation in traced.eqns if equation.primitive.name == "shard_map")
    kinds = _kinds_of(state)
    kind_of = dict(zip(traced.invars[1:], kinds, strict=False))  # constants come before, batches behind
    given = [kind_of.get(variable, ACTIVATIONS) for variable in equation.invars if isinstance(variable, core.Var)]
    bytes_of = alive(equation.params["jaxpr"], given, kinds)
    shapes = jax.eval_shape(ensemble.init, jax.random.key(0))
    return MemoryPlan(**{kind: bytes_of[kind] for kind in KINDS}, output_table=_lie_of_output_table(shapes, ensemble.devices))


def _kinds_of(state: TrainState) -> list[str]:
    """Return the kind of each leaf of the members' state."""
    return [PARAMETERS] * len(jax.tree.leaves(state.params)) + [OPTIMIZER] * len(jax.tree.leaves(state[1:]))


def _lie_of_output_table(shapes: PyTree, devices: int) -> str:
    """Say how the output embedding lies on the devices of a member; shapes: of the parameters that are stored."""
    table = shapes[bert.HEAD]["embedding"]
    shared = table is None
    shape = (shapes["embed"]["embedding"] if shared else table).shape
    axis = split_axis(shape, devices)
    how = "whole on every device" if axis is None else f"its {('rows', 'columns')[axis]} split over {devices} devices"
    return f"{' x '.join(f'{length:,}' for length in shape)}, {how}{', one with the input table' if shared else ''}"


def _masked_rows(rows: int, length: int, slots: int) -> PyTree:
    """Return the shapes of the masked rows of one device and step."""
    number = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    tokens, slot, weight = number((rows, length)), number((slots,)), jax.ShapeDtypeStruct((slots,), jnp.float32)
    shapes: Any = (tokens, tokens, number((rows,)), slot, slot, weight, number(()))
    return MaskedRows(*shapes)
