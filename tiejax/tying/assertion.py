"""That ties hold, also inside a compiled step."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path, resolve


def assert_tied(params: PyTree, ties: Sequence[Tie]) -> None:
    """Raise TieError unless the two leaves of every tie are equal; NaN equals NaN.

    In a compiled function the comparison is part of it, and the error is raised on the host once its result is there: jax then
    wraps it in one of its own, whose words hold ours. Leave it out of what is timed: the host is asked in every step.
    """
    leaves, _ = leaves_by_path(params)
    resolved = resolve(ties, params)
    equal = [_equal(apply_transform(tie, leaves[tie.source]), leaves[tie.target]) for tie in resolved]
    names = [str(tie) for tie in resolved]
    if any(isinstance(one, jax.core.Tracer) for one in equal):
        jax.debug.callback(lambda *found: _tell(names, found), *equal)
    else:
        _tell(names, equal)


def _equal(one: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.array_equal(one, other, equal_nan=jnp.issubdtype(jnp.result_type(one), jnp.inexact))


def _tell(names: Sequence[str], equal: Sequence[np.ndarray | jax.Array]) -> None:
    apart = [name for name, is_equal in zip(names, equal, strict=True) if not is_equal]
    if apart:
        raise TieError(f"{apart[0]}: the leaves differ although they are tied" + (f" ({len(apart)} ties)" if apart[1:] else ""))
