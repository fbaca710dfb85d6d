"""Optimizers that look across leaves, found by tracing an update: which updates depend on the gradient of which leaf."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import is_array
from tiejax.tying.tie import PyTree, leaves_by_path
from tiejax.tying.ties import TiesLike, resolve_full

Origins = frozenset[str]  # paths of the parameters on which a value depends
NOTHING: Origins = frozenset()


def check_leafwise(optimizer: Any, params: PyTree, ties: TiesLike) -> None:
    """Raise TieError if an optimizer would count a switched tie twice, since the update of one leaf depends on another.

    Where a switched tie is on, both leaves receive the tied gradient. An element-wise optimizer such as AdamW then updates
    each as if the array were stored once. One that reduces over all leaves, such as `optax.clip_by_global_norm`, counts the
    array twice. The update is traced with shapes; nothing is computed. A conditional on whether values are finite does not
    count as a dependence.

    Args:
        optimizer: An optax optimizer.
        params: Full parameters, or shapes and dtypes of them.
        ties: A tie or several, between leaves of `params`.

    Raises:
        TieError: The update of a leaf depends on the gradient, the parameter or the state of another leaf that is tied.
    """
    tied = {path: tie for tie in resolve_full(ties, params) for path in (tie.source, tie.target)}
    if not tied:
        return
    for path, origins in update_origins(optimizer, params).items():
        for other in sorted(origins & tied.keys() - {path}):
            raise TieError(
                f"{tied[other]}: the optimizer's update of {path} depends on {other}, so that a tie that is switched on would "
                "count twice, as in a global norm; clip gradients before the optimizer, by tiejax.clip_by_global_norm or "
                "max_norm of Ensemble and make_step, or store the array once (store, view)"
            )


def update_origins(optimizer: Any, params: PyTree) -> dict[str, Origins]:
    """Return, for the update of each leaf, the paths of the leaves on whose gradient or value it depends after any step."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf, params)
    # One update first, since it may add to the state, as `optax.monitor` does.
    _, state = jax.eval_shape(optimizer.update, shapes, jax.eval_shape(optimizer.init, shapes), shapes)
    traced = jax.make_jaxpr(optimizer.update)(shapes, state, shapes)
    paths = [path for path, leaf in leaves_by_path(shapes)[0].items() if leaf is not None]
    own = [frozenset([path]) for path in paths]
    of_state, found = [NOTHING] * len(jax.tree.leaves(state)), None
    while found is None or found[len(paths) :] != of_state:  # what a state has seen, it passes to later steps
        of_state = of_state if found is None else [old | new for old, new in zip(of_state, found[len(paths) :], strict=True)]
        found = _origins(traced.jaxpr, [*own, *of_state, *own])
    return dict(zip(paths, found[: len(paths)], strict=True))


def arguments_used(function: Callable[..., Any], *args: Any) -> set[int]:
    """Return the places of the arguments on which some output of a function depends, by tracing it with their shapes."""
    traced, leaves = jax.make_jaxpr(function)(*args), [len(jax.tree.leaves(arg)) for arg in args]
    given = [frozenset([str(place)]) for place, number in enumerate(leaves) for _ in range(number)]
    return {int(place) for found in _origins(traced.jaxpr, given) for place in found}


def _origins(jaxpr: core.Jaxpr, given: Sequence[Origins]) -> list[Origins]:
    """Return on what each output of a program depends, given on what its inputs depend."""
    known: dict[Any, Origins] = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> Origins:
        return NOTHING if isinstance(atom, core.Literal) else known.get(atom, NOTHING)

    for eqn in jaxpr.eqns:
        inputs = [of(atom) for atom in eqn.invars]
        known |= zip(eqn.outvars, _of_equation(eqn, inputs), strict=True)
        for atom in eqn.invars:
            if "Ref" in type(atom.aval).__name__:  # a mutable array, which may have been written to
                known[atom] = frozenset[str]().union(*inputs)
    return [of(atom) for atom in jaxpr.outvars]


def _of_equation(eqn: core.JaxprEqn, inputs: Sequence[Origins]) -> list[Origins]:
    """Return on what each output of an equation depends; of a loop, each on all inputs."""
    everything = frozenset[str]().union(*inputs)
    name, inner = eqn.primitive.name, _programs(eqn.params)
    if name == "is_finite":
        return [NOTHING]
    if name == "cond":
        branches = [_origins(jaxpr, inputs[1:]) for jaxpr in inner]
        return [inputs[0].union(*origins) for origins in zip(*branches, strict=True)]
    if name not in ("scan", "while") and len(inner) == 1 and len(inner[0].invars) == len(inputs):
        return _origins(inner[0], inputs)
    return [everything] * len(eqn.outvars)


def _programs(params: Any) -> list[core.Jaxpr]:
    """Return the programs among the parameters of an equation, such as the branches of a conditional."""
    values = [one for value in params.values() for one in (value if isinstance(value, tuple | list) else [value])]
    opened = [one.jaxpr if isinstance(one, core.ClosedJaxpr) else one for one in values]
    return [one for one in opened if isinstance(one, core.Jaxpr)]
