"""Memory per device for pre-training an encoder, on meshes of devices that need not be present.

A member is sharded as in `training.placement`: rows are split, every leaf of parameters and moments is split along its largest
axis that the devices divide, and parameters are gathered where the loss reads them. The step is traced on an abstract mesh, and
the arrays that are live at its peak are counted (`live_arrays.py`): nothing is compiled or allocated.
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
from tiejax.training.chunk import step_on_mesh
from tiejax.training.placement import SEEDS, split_axis
from tiejax.training.step import TrainState

PyTree = Any


class MemoryPlan(NamedTuple):
    """Bytes on one device at the peak of a step.

    parameters: the device's shards, and the gathered copies that are live. gradients: whole gradients before
    they are scattered, their shards after. optimizer: the optimizer state. activations: everything else, including the window
    of batches from the host. output_table: description of the shape and sharding of the output table.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    output_table: str

    @property
    def total(self) -> int:
        """The sum over all kinds."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """Settings of the pre-training of an encoder that determine its memory.

    shape: sizes of the encoder; a coupled table is stored once. vocabulary: number of rows of the tables. length: tokens per
    row. devices: number of devices that train a member together. members: number of members that these devices train one after
    the other. slots: number of rows of one device -> number of slots for their masked tokens (default: for rows
    without padding or special tokens). dtype: dtype of the computation. max_positions: number of position embeddings (default:
    `length`). optimizer: default AdamW. max_norm: limit of the gradient norm. window: number of steps whose batches are on the
    devices at a time.
    Raises ValueError if the shape is invalid.
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


def plan_memory(setup: Pretraining, rows: int) -> MemoryPlan:
    """Return the memory per device of a step with `rows` rows over all devices of a member."""
    here = -(-rows // setup.devices)
    plan = plan_ensemble(*shapes_of_step(setup, rows), setup.members)
    token = 2 if setup.vocabulary <= 2**16 else 4
    window = setup.members * setup.window * here * (setup.length * (token + 2) + 4)  # tokens, segments, number of the row
    return plan._replace(activations=plan.activations + window)


def largest_batch(setup: Pretraining, memory: int) -> int:
    """Return the largest number of rows per step, a multiple of the devices, that fits the memory (bytes) of a device.

    Raises ValueError, beginning with `memory`, if one row per device does not fit.
    """

    def taken(here: int) -> int:
        return plan_memory(setup, here * setup.devices).total

    fits, most = 1, MOST_PLACES // (setup.length * setup.devices)
    bytes_at_fits = taken(fits)
    if bytes_at_fits > memory:
        raise ValueError(f"memory: one row per device takes {bytes_at_fits:,} bytes, got {memory:,}; use more devices")
    fails, bytes_at_fails = most + 1, taken(most)
    if bytes_at_fails <= memory:
        return most * setup.devices
    while fails - fits > 1:
        # Memory is nearly linear in the number of rows: interpolate between the two.
        guess = fits + int((fails - fits) * (memory - bytes_at_fits) / (bytes_at_fails - bytes_at_fits))
        guess = min(max(guess, fits + 1), fails - 1)
        size = taken(guess)
        fits, bytes_at_fits, fails, bytes_at_fails = (
            (guess, size, fails, bytes_at_fails) if size <= memory else (fits, bytes_at_fits, guess, size)
        )
    return fits * setup.devices


def shapes_of_step(setup: Pretraining, rows: int) -> tuple[training.Ensemble, PyTree]:
    """Return the ensemble, and the shapes of the batch of one device in a step with `rows` rows over all of them."""
    here = -(-rows // setup.devices)
    slots = slots_for(here * setup.length) if setup.slots is None else setup.slots(here)
    return _ensemble(setup), _masked_rows(here, setup.length, slots)


def _ensemble(setup: Pretraining) -> training.Ensemble:
    """Return an ensemble that is fed batches of rows that are masked already."""
    positions = setup.length if setup.max_positions is None else setup.max_positions
    model = bert.build(setup.shape, setup.vocabulary, positions, rematerialise=setup.rematerialise, dtype=setup.dtype)
    objective = MaskedLM(model, setup.shape.coupled)
    return training.Ensemble(
        init=objective.init,
        sample=lambda seed_key, step, masked: masked,
        loss=objective.loss,
        optimizer=setup.optimizer or training.make_optimizer("adamw", optax.constant_schedule(1e-3), 0.01),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        steps=1,
        recorders={},
        max_norm=setup.max_norm,
        members=training.Scanned(),
        devices=setup.devices,
    )


def plan_ensemble(ensemble: training.Ensemble, fed: PyTree, seeds: int = 1) -> MemoryPlan:
    """Return the memory per device of a step of an ensemble with `seeds` seeds on a group of `ensemble.devices` devices.

    fed: shapes of the batch of one device, for one seed and step. The other batches of a window and recorders are not counted.
    """
    mesh = AbstractMesh((1, ensemble.devices), (SEEDS, training.DATA))
    local, state, _ = step_on_mesh(ensemble, mesh, seeds, PartitionSpec(SEEDS))
    names = jax.ShapeDtypeStruct((seeds,), jnp.uint32)
    fed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype), fed)
    traced = jax.make_jaxpr(local)(names, state, fed).jaxpr
    equation = next(equation for equation in traced.eqns if equation.primitive.name == "shard_map")
    kinds = _kinds_of(state)
    kind_of = dict(zip(traced.invars[1:], kinds, strict=False))  # hoisted constants come first, batches last
    given = [kind_of.get(variable, ACTIVATIONS) for variable in equation.invars if isinstance(variable, core.Var)]
    bytes_of = alive(equation.params["jaxpr"], given, kinds)
    shapes = jax.eval_shape(ensemble.init, jax.random.key(0))
    return MemoryPlan(**{kind: bytes_of[kind] for kind in KINDS}, output_table=_output_table_layout(shapes, ensemble.devices))


def _kinds_of(state: TrainState) -> list[str]:
    """Return the kind of each leaf of the state of the members."""
    return [PARAMETERS] * len(jax.tree.leaves(state.params)) + [OPTIMIZER] * len(jax.tree.leaves(state[1:]))


def _output_table_layout(shapes: PyTree, devices: int) -> str:
    """Describe the shape and sharding of the output table. shapes: shapes of the stored parameters."""
    table = shapes[bert.HEAD]["embedding"]
    shared = table is None
    shape = (shapes["embed"]["embedding"] if shared else table).shape
    axis = split_axis(shape, devices)
    how = "whole on every device" if axis is None else f"its {('rows', 'columns')[axis]} split over {devices} devices"
    return f"{' x '.join(f'{length:,}' for length in shape)}, {how}{', shared with the input table' if shared else ''}"


def _masked_rows(rows: int, length: int, slots: int) -> PyTree:
    """Return the shapes of the masked rows of one device in one step."""
    number = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    tokens, slot, weight = number((rows, length)), number((slots,)), jax.ShapeDtypeStruct((slots,), jnp.float32)
    shapes: Any = (tokens, tokens, number((rows,)), slot, slot, weight, number(()))
    return MaskedRows(*shapes)
