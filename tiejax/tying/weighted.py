"""Gradient weights: the share of each use's gradient that a shared array receives."""

from typing import Any

import jax
import numpy as np

Weight = float | jax.Array | np.ndarray


@jax.custom_jvp
def weighted(x: Any, weight: Weight) -> Any:
    """Return `x` bit for bit, with a derivative that is `weight` times that of `x`."""
    return x


@weighted.defjvp
def _weighted_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    x, weight = primals
    return x, scale(weight, tangents[0])


def scale(weight: Weight, gradient: Any) -> Any:
    """Return `weight` times a gradient, in the gradient's dtype."""
    return gradient if isinstance(weight, int | float) and weight == 1 else (weight * gradient).astype(gradient.dtype)


def broadcasts_to(weight: Weight, shape: tuple[Any, ...]) -> bool:
    """Whether a weight broadcasts to an array of this shape, which may be symbolic, without changing its shape."""
    own = np.shape(weight)
    return len(own) <= len(shape) and all(one in (1, size) for one, size in zip(reversed(own), reversed(shape), strict=False))


def hashable(weight: Weight) -> Any:
    """Return a value that represents a weight in comparisons and hashes; a traced weight equals only itself."""
    if isinstance(weight, jax.core.Tracer):
        return id(weight)
    array = np.asarray(weight)
    return (array.shape, array.dtype.name, array.tobytes()) if array.ndim else array.item()
