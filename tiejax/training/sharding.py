"""One member on several devices: the rows of its batches, its parameters and its optimizer state split over the axis `data`.

Every leaf is split along its largest axis that the number of devices divides; small ones are kept whole on every device.
Parameters are gathered where the loss reads them, so that automatic differentiation scatters the sum of their gradients, and
the optimizer updates each part where it lies. A loss is a device's share of the mean: whoever writes it divides by `total`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

PyTree = Any

DATA = "data"
SMALLEST = 4096  # elements below which splitting a leaf costs more than it saves


def split_axis(shape: tuple[int, ...], devices: int) -> int | None:
    """Return the axis along which a leaf of this shape is split over so many devices, None if it is kept whole."""
    fitting = [axis for axis, length in enumerate(shape) if length % devices == 0]
    if devices == 1 or math.prod(shape) < SMALLEST or not fitting:
        return None
    return max(fitting, key=lambda axis: shape[axis])


def spec(shape: tuple[int, ...], devices: int) -> PartitionSpec:
    """Return how a leaf of this shape lies on the devices of its member."""
    axis = split_axis(shape, devices)
    return PartitionSpec(*(DATA if place == axis else None for place in range(len(shape))))


def gather(parts: PyTree, shapes: PyTree, devices: int) -> PyTree:
    """Return the whole leaves, of `shapes`, from this device's parts; gradients come back summed over the devices."""

    def whole(part: jax.Array, shape: Any) -> jax.Array:
        axis = split_axis(shape.shape, devices)
        return _read_everywhere(part) if axis is None else jax.lax.all_gather(part, DATA, axis=axis, tiled=True)

    return jax.tree.map(whole, parts, shapes)


@jax.custom_vjp
def _read_everywhere(leaf: jax.Array) -> jax.Array:
    """Read a leaf that every device holds whole."""
    return leaf


def _forward(leaf: jax.Array) -> tuple[jax.Array, None]:
    return leaf, None


def _backward(residual: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.psum(gradient, DATA),)


_read_everywhere.defvjp(_forward, _backward)


def leaf_squares(parts: PyTree, shapes: PyTree, devices: int) -> PyTree:
    """Return the sum of the squares of each whole leaf, of `shapes`, from this device's parts; equal on all devices."""

    def square(part: jax.Array, shape: Any) -> jax.Array:
        of_part = jnp.sum(jnp.square(part))
        # What every device holds whole is not summed over them.
        return of_part if split_axis(shape.shape, devices) is None else jax.lax.psum(of_part, DATA)

    return jax.tree.map(square, parts, shapes)


def total(value: PyTree) -> PyTree:
    """Return the sum over the devices of a member, as sums and counts of a batch need it."""
    return jax.tree.map(lambda leaf: jax.lax.psum(jnp.asarray(leaf), DATA), value)
