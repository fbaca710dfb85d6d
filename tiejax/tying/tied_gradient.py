r"""The tied gradient: the sum over the uses of a shared array, computed from the gradients of an untied loss.

With the source `a`, the target `b`, the transform T and the gradients g of an untied loss, both leaves of a tie that is on get
total = g_a + T^-1(g_b): the source total, the target T(total) (`symmetrise`).

For parameters that are stored once, automatic differentiation through `view` gives the same sum.

`on` is one boolean per resolved tie, or one for all of them; an array of shape `[ties]` or `[]`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError, short
from tiejax.tying.leaves import beside, is_trained
from tiejax.tying.store import call, store, view
from tiejax.tying.tie import PyTree, Tie, adjoint_transform, apply_transform, leaves_by_path, scale, state_tie
from tiejax.tying.ties import Ties, TiesLike, as_ties, check_links, resolve_full

Switches = jax.Array | np.ndarray | np.bool_ | bool | Sequence[bool]  # boolean, [] or [ties]


def per_tie(on: Switches, ties: Ties, given: TiesLike, leaves: Mapping[str, Any]) -> list[tuple[Tie, jax.Array]]:
    """Pair every resolved tie with its switch; raises TieError if `on` has another shape or dtype, or parts a chain.

    given: the ties before they were resolved against `leaves`.
    """
    try:
        switches = jnp.asarray(on)
    except (TypeError, ValueError):
        switches = jnp.zeros(())
    if switches.dtype != bool or switches.shape not in ((), (1,), (len(ties),)):
        one = "on" if isinstance(on, jax.Array | np.ndarray) else short(on)
        raise TieError(
            f"on: expected a boolean, or one for each of the {len(ties)} resolved ties, got {one}, "
            f"{tuple(switches.shape)} {switches.dtype}; compare, as in step < 100"
        )
    if switches.size > 1:
        check_links(on, given, leaves)
    return list(zip(ties, jnp.broadcast_to(switches, (len(ties),)), strict=True))


def symmetrise(grads: PyTree, ties: TiesLike, on: Switches, gradient_weights: Any = None) -> PyTree:
    """Turn the gradients of an untied loss into those of the tied loss, for every tie that is on.

    With the gradients g of source a and target b, and the tie's transform T, both leaves receive the sum over both uses,
    total = g_a + T^-1(g_b): the source receives total, the target T(total). A tie with `gradient="source"` leaves g_b out.

    For a transform that is not a permutation, the adjoint of T takes the place of T^-1, and the target receives the total with
    its entries rearranged as by T but not scaled; scaled leaves stay tied by `copy_to_targets` after the update.

    Args:
        grads: Gradients of full parameters, taken where the two leaves of every tie that is on are equal.
        ties: A tie or several, between leaves of `grads`.
        on: Whether each resolved tie is on, `[ties]`, or one boolean for all. It may be traced.
        gradient_weights: Weights (a, b) of each resolved tie, `[ties, 2]` or a list of pairs, instead of those of `ties`: they
            may be traced, and so change during training or differ between the members of an ensemble. If several ties of one
            source are on, the first of them decides the weight of the source's own use.

    Returns:
        Gradients with the structure of `grads`.

    Raises:
        TieError: The ties do not fit `grads`, `on` has another shape or dtype, a link of a chain has a switch of its own and
            may be on without the link before it, or a transform is not linear.
    """
    leaves, treedef = leaves_by_path(grads)
    given, fitting = resolved_of_gradients(ties, leaves, grads)
    resolved = iter(fitting)
    weights = [tie.weights for tie in given] if gradient_weights is None else _pairs(gradient_weights, len(given))
    weighed = [
        (next(resolved), is_on, a, b)
        for (tie, is_on), (a, b) in zip(per_tie(on, given, of_gradients(ties, leaves), leaves), weights, strict=True)
        if _has_gradient(tie, leaves)
    ]
    # The gradients of integers have a dtype without entries.
    weighed = [one for one in weighed if getattr(leaves[one[0].source], "dtype", None) != jax.dtypes.float0]
    totals = {tie.source: leaves[tie.source] for tie, *_ in weighed}
    for tie, is_on, a, _ in reversed(weighed):  # reversed, so that the first tie of a source that is on is applied last
        if not _is(a, 1):
            totals[tie.source] = jnp.where(is_on, scale(a, leaves[tie.source]), totals[tie.source])
    for tie, is_on, _, b in weighed:
        if not _is(b, 0):
            from_target = beside(scale(b, adjoint_transform(tie, leaves[tie.target], leaves[tie.source])), leaves[tie.source])
            totals[tie.source] = jnp.where(is_on, totals[tie.source] + from_target, totals[tie.source])
    for tie, is_on, *_ in weighed:
        rearranging, own = state_tie(tie), leaves[tie.target]
        if rearranging is not None:
            shared = beside(apply_transform(rearranging, totals[tie.source]), own)
            leaves[tie.target] = beside(jnp.where(is_on, shared, own).astype(jnp.result_type(own)), own)
    totals = {path: beside(total, leaves[path]) for path, total in totals.items()}
    return jax.tree_util.tree_unflatten(treedef, (leaves | totals).values())


def _pairs(weights: Any, number: int) -> list[tuple[Any, Any]]:
    """Return the gradient weights of each tie; raises TieError unless they are pairs, one for each of `number` ties."""
    try:
        pairs = [(a, b) for a, b in weights]
    except (TypeError, ValueError):
        pairs = []
    if len(pairs) != number:
        raise TieError(f"gradient_weights: expected two for each of the {number} resolved ties, got {short(weights)}")
    return pairs


def resolved_of_gradients(ties: TiesLike, leaves: Mapping[str, Any], grads: PyTree) -> tuple[Ties, Ties]:
    """Return the resolved ties, and those of them whose leaves are trained, which fit the gradients; raises TieError."""
    given = ties if isinstance(ties, Ties) else resolve_full(of_gradients(ties, leaves), grads)
    return given, resolve_full(of_gradients(given, leaves), grads)


def of_gradients(ties: TiesLike, leaves: Mapping[str, Any]) -> Ties | list[Tie]:
    """Return the ties, of the same kind, without those of leaves that are not trained, such as integers: they may be None."""
    found = [tie for tie in as_ties(ties) if _has_gradient(tie, leaves)]
    return Ties(found) if isinstance(ties, Ties) else found


def _has_gradient(tie: Tie, leaves: Mapping[str, Any]) -> bool:
    return any(leaves.get(path, tie) is not None for path in (tie.source, tie.target))


def _is(weight: Any, number: int) -> bool:
    return isinstance(weight, int | float) and weight == number


def gradients_by_use(
    loss: Callable[..., Any], stored: PyTree, ties: TiesLike, *args: Any, has_aux: bool = False, **kwargs: Any
) -> PyTree:
    """Compute the gradient of each use of every shared array separately, at W_target = T(W_source).

    Args:
        loss: A scalar function `(params, *args, **kwargs)` of full parameters; with `has_aux`, it returns a pair
            (scalar, auxiliary output).
        stored: The parameters that `store` returned.
        ties: The tie or ties that were passed to `store`.
        *args: Further arguments of `loss`.
        has_aux: Whether `loss` returns auxiliary output.
        **kwargs: Further keyword arguments of `loss`.

    Returns:
        Gradients with the structure of the full parameters, or the pair (gradients, auxiliary output). Leaves that are not
        trained, such as functions, settings, integers and random keys, are `None`. `collect` sums the gradients into those of
        `stored`.

    Raises:
        TieError: The ties do not fit `stored`; or `loss` changes the state of an NNX module and does not return it.
    """
    if not callable(loss):
        raise TieError(f"loss: expected a function of full parameters, got {type(loss).__name__}")
    leaves, treedef = leaves_by_path(view(stored, ties))
    trained = {path: leaf for path, leaf in leaves.items() if is_trained(leaf)}

    def loss_of_trained(trained: dict[str, Any]) -> Any:
        return call(loss, jax.tree_util.tree_unflatten(treedef, (leaves | trained).values()), *args, **kwargs)

    found = jax.grad(loss_of_trained, has_aux=has_aux)(trained)
    grads, aux = found if has_aux else (found, None)
    tree = jax.tree_util.tree_unflatten(treedef, [grads.get(path) for path in leaves])
    return (tree, aux) if has_aux else tree


def collect(grads: PyTree, ties: TiesLike) -> PyTree:
    """Sum the gradients of the uses of each stored array: a g_source + b T^-1(g_target) for gradient weights (a, b).

    Args:
        grads: Gradients with the structure of the full parameters, as `gradients_by_use` returns.
        ties: The ties that were passed to `store`.

    Returns:
        Gradients with the structure of stored parameters: `None` in place of the targets.

    Raises:
        TieError: The ties do not fit `grads`.
    """
    total = symmetrise(grads, ties, True)
    return store(total, of_gradients(ties, leaves_by_path(grads)[0]))
