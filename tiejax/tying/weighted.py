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
    return x, (tangents[0] * weight).astype(x.dtype)
