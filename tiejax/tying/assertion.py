"""An assertion that ties hold, which also works inside a compiled function."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.tie import PyTree, apply_transform, leaves_by_path
from tiejax.tying.ties import TiesLike, resolve_full


def assert_tied(params: PyTree, ties: TiesLike, atol: float = 0.0) -> None:
    """Raise TieError unless the two leaves of every tie are equal; NaN equals NaN. Leaves may be on different devices.

    In a compiled function the comparison becomes part of the program, and the error is raised on the host when its result
    arrives; jax then wraps it in another exception that quotes this message. Every call waits for the host, so do not use
    the assertion in code that is timed.

    Args:
        params: Full parameters, traced or not.
        ties: A tie or several, between leaves of `params`.
        atol: The largest difference between two floating-point entries that counts as equal; others must be the same.

    Raises:
        TieError: The leaves of a tie differ, the ties do not fit `params`, or `params` are stored.
        ValueError: `atol` is negative or NaN.
    """
    if not atol >= 0:
        raise ValueError(f"atol: expected a number >= 0, got {atol}")
    leaves, _ = leaves_by_path(params)
    resolved = resolve_full(ties, params)
    equal = [_equal(apply_transform(tie, leaves[tie.source]), leaves[tie.target], atol) for tie in resolved]
    names = [str(tie) for tie in resolved]
    if any(isinstance(one, jax.core.Tracer) for one in equal):
        jax.debug.callback(lambda *found: _raise_unless(found, names), *equal)
    else:
        _raise_unless(equal, names)


def _equal(one: Any, other: Any, atol: float) -> Any:
    traced = any(isinstance(x, jax.core.Tracer) for x in (one, other))
    if not traced:
        one, other = jax.device_get((one, other))  # they may be on different devices
    if not jnp.issubdtype(jnp.result_type(one), jnp.inexact):
        return jnp.array_equal(one, other)
    numpy: Any = jnp if traced else np  # which keeps float64, and numbers that are too small for other devices
    equal = (one == other) | (numpy.isnan(one) & numpy.isnan(other))
    if atol > 0:
        equal |= numpy.abs(numpy.subtract(one, other)) <= atol
    return numpy.all(equal)


def _raise_unless(equal: Sequence[Any], names: Sequence[str]) -> None:
    different = [name for name, is_equal in zip(names, equal, strict=True) if not is_equal]
    if different:
        others = f"; so do those of {len(different) - 1} more ties" if different[1:] else ""
        raise TieError(f"{different[0]}: the values of the two leaves differ{others}")
