r"""The tied gradient: the sum over the uses of a shared array, from the gradients of an untied loss.

With `a` the source, `b` the target, T the transform (its own inverse) and g the gradients of an untied loss,

    total = g_a + T(g_b),    g_a' = total,    g_b' = T(total)        where the tie is on
    g_a' = g_a,              g_b' = g_b                              where it is off,

or total = a g_a + b T(g_b) with the weights (a, b) of a tie.

For parameters stored once, automatic differentiation through `view` gives the same sum: dL/dW = dL/dW_a + T(dL/dW_b).

`on` is one boolean per resolved tie, or one for all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tiejax.tying.store import store, view
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path, resolve
from tiejax.tying.weighted import times

Switches = Bool[Array, ""] | Bool[Array, "ties"] | bool


def per_tie(on: Switches, ties: Sequence[Tie]) -> list[tuple[Tie, jax.Array]]:
    """Return every resolved tie with its switch."""
    return list(zip(ties, jnp.broadcast_to(jnp.asarray(on), (len(ties),)), strict=True))


def symmetrise(
    grads: PyTree, ties: Sequence[Tie], on: Switches, gradient_weights: Float[Array, "ties 2"] | None = None
) -> PyTree:
    """Turn the gradients of the untied loss into those of the tied one, at every tie that is on (module docstring).

    A tie with `gradient="owner"` leaves g_b out of the total. gradient_weights: (a, b) of each resolved tie, instead of what
    the ties say, which may so change while training runs, or differ between the members of an ensemble; where several ties of
    one source are on, its own use has the weight that the first of them gives it. Raises TieError as `resolve` does.
    """
    leaves, treedef = leaves_by_path(grads)
    switched = per_tie(on, resolve(ties, grads))
    of_ties = [tie.weights for tie, _ in switched] if gradient_weights is None else gradient_weights
    weighed = [(tie, is_on, a, b) for (tie, is_on), (a, b) in zip(switched, of_ties, strict=True)]
    totals = {tie.source: leaves[tie.source] for tie, _ in switched}
    for tie, is_on, a, _ in reversed(weighed):  # so that of several ties of a source the first that is on has the last word
        if not _is(a, 1):
            totals[tie.source] = jnp.where(is_on, times(a, leaves[tie.source]), totals[tie.source])
    for tie, is_on, _, b in weighed:
        if not _is(b, 0):
            from_target = times(b, apply_transform(tie, leaves[tie.target]))
            totals[tie.source] = jnp.where(is_on, totals[tie.source] + from_target, totals[tie.source])
    for tie, is_on in switched:
        leaves[tie.target] = jnp.where(is_on, apply_transform(tie, totals[tie.source]), leaves[tie.target])
    return jax.tree_util.tree_unflatten(treedef, (leaves | totals).values())


def _is(weight: Any, number: int) -> bool:
    return isinstance(weight, int | float) and weight == number


def gradients_by_use(loss: Callable[..., Any], stored: PyTree, ties: Sequence[Tie], *args: Any) -> PyTree:
    r"""Return the gradient of every use of each shared array, dL/dW_source and dL/dW_target at W_source = T(W_target).

    loss: (full parameters, *args) -> scalar. The result has the shape of the full parameters; `collect` sums it to the
    gradient of what is stored.
    """
    return jax.grad(loss)(view(stored, ties), *args)


def collect(grads: PyTree, ties: Sequence[Tie]) -> PyTree:
    """Return the gradient of stored parameters from that of each use: a dL/dW_source + b T(dL/dW_target), by (a, b) of ties."""
    return store(symmetrise(grads, ties, True), ties)
