"""Uses with weights: how much of each use's gradient a shared array takes."""

from typing import Any

import jax
import numpy as np

Weight = float | jax.Array | np.ndarray


@jax.custom_jvp
def weighted(x: Any, weight: Weight) -> Any:
    """Return x to the bit; its derivative is `weight` times that of x."""
    return x


@weighted.defjvp
def _weighted_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    x, weight = primals
    return x, times(weight, tangents[0])


def times(weight: Weight, gradient: Any) -> Any:
    """Return a gradient so many times, in its own dtype."""
    return gradient if isinstance(weight, int | float) and weight == 1 else (weight * gradient).astype(gradient.dtype)


def fits(weight: Weight, shape: tuple[int, ...]) -> bool:
    """Say whether a weight can be multiplied with an array of this shape and leave it as it is."""
    try:
        return np.broadcast_shapes(np.shape(weight), shape) == shape
    except ValueError:
        return False


def same(one: Weight, other: Weight) -> bool:
    """Say whether two weights are known to be equal; traced ones are, if they are one."""
    if one is other:
        return True
    traced = isinstance(one, jax.core.Tracer) or isinstance(other, jax.core.Tracer)
    return not traced and np.array_equal(one, other)
