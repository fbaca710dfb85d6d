"""Memory per device for pre-training an encoder, on devices that need not be present.

A member is sharded as in `training.placement`: rows are split, every leaf of parameters and moments is split along its largest
axis that the devices divide, and parameters are gathered where the loss reads them. Parameters, gradients and moments follow
from shapes. Activations are those that the compiler reports for the gradient of the loss on the rows of one device.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from tiejax import training
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.pretraining.masked_lm import MaskedLM
from tiejax.pretraining.step_plan import MOST_PLACES
from tiejax.text.masking import MaskedRows, slots_for
from tiejax.training.placement import split_axis

PyTree = Any


class MemoryPlan(NamedTuple):
    """Bytes on one device at the peak of a step.

    parameters: the device's shards and, with several devices, the gathered parameters. gradients: the whole gradients, before
    they are scattered. optimizer: the optimizer state. activations: everything else, including the window of batches from the
    host. output_table: description of the shape and sharding of the output table.
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
    ensemble, batch = shapes_of_step(dataclasses.replace(setup, dtype=None), rows)
    shapes = jax.eval_shape(ensemble.init, jax.random.key(0))
    shards = jax.tree.map(functools.partial(_shard, devices=setup.devices), shapes)
    state = jax.eval_shape(ensemble.optimizer.init, shards)
    gathered = _bytes(shapes) if setup.devices > 1 else 0
    token = 2 if setup.vocabulary <= 2**16 else 4
    window = setup.window * here * (setup.length * (token + 2) + 4)  # tokens, segments, number of the row
    # The peak is in the backward pass, or in the update, which has only shards.
    in_loss = int(_in_loss(ensemble, shapes, batch) * jnp.dtype(setup.dtype or jnp.float32).itemsize / 4)
    in_update = _in_update(ensemble.optimizer, shards, state) + _bytes(shards) - _bytes(shapes) - gathered
    return MemoryPlan(
        parameters=setup.members * _bytes(shards) + gathered,
        gradients=_bytes(shapes),
        optimizer=setup.members * _bytes(state),
        activations=max(in_loss, in_update) + setup.members * window,
        output_table=_output_table_layout(shapes, setup.devices),
    )


def _in_loss(ensemble: training.Ensemble, shapes: PyTree, batch: PyTree) -> int:
    """Return the bytes of temporary arrays of the gradient of the loss on one device's rows, compiled in float32.

    A CPU converts half precision, which is taken to need half of these bytes.
    """
    mesh = Mesh(np.array(jax.devices()[:1]), (training.DATA,))

    def gradient(params: PyTree, batch: PyTree) -> PyTree:
        return jax.grad(lambda params: ensemble.loss(params, batch, jax.random.key(0))[0])(params)

    on_mesh = jax.shard_map(gradient, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    return _temporary(jax.jit(on_mesh), shapes, batch)


def _in_update(optimizer: optax.GradientTransformation, params: PyTree, state: PyTree) -> int:
    """Return the bytes of temporary arrays of an update of one device's shards."""

    def update(grads: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return _temporary(jax.jit(update, donate_argnums=(1, 2)), params, state, params)


def _temporary(function: Any, *shapes: PyTree) -> int:
    return int(function.lower(*shapes).compile().memory_analysis().temp_size_in_bytes)


def _shard(leaf: jax.ShapeDtypeStruct, devices: int) -> jax.ShapeDtypeStruct:
    """Return the shape of a device's shard of a leaf."""
    at = split_axis(leaf.shape, devices)
    return jax.ShapeDtypeStruct(
        [length // devices if axis == at else length for axis, length in enumerate(leaf.shape)], leaf.dtype
    )


def _bytes(tree: PyTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def largest_batch(setup: Pretraining, memory: int) -> int:
    """Return the largest number of rows per step, a multiple of the devices, that fits the memory (bytes) of a device.

    Raises ValueError, beginning with `memory`, if one row per device does not fit.
    """
    most = MOST_PLACES // (setup.length * setup.devices)

    @functools.cache
    def taken(here: int) -> int:
        return plan_memory(setup, here * setup.devices).total

    if taken(1) > memory:
        raise ValueError(f"memory: one row per device takes {taken(1):,} bytes, got {memory:,}; use more devices")
    fits, fails = 1, most + 1
    while fails - fits > 1:
        # Memory is nearly linear in the number of rows: extrapolate from one and eight rows, or interpolate.
        first, last = (1, min(8, most)) if fails > most else (fits, fails)
        slope = (taken(last) - taken(first)) / (last - first)
        guess = fits + int((memory - taken(fits)) / max(slope, 1))
        guess = min(max(guess, fits + 1), fails - 1)
        fits, fails = (guess, fails) if taken(guess) <= memory else (fits, guess)
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
