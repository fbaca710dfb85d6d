"""Where the state of a parameter is in an optimizer state, and how it changes under a tie's transform.

An optimizer keeps the state of each parameter (its moments, for example) in subtrees that have the structure of the parameters;
masked parameters are left out. The other leaves, such as a step count, belong to all parameters together. `owned_leaves` tells
the two apart by structure, so that any optax state is handled. An owned leaf is one number, an array with the shape of the
parameter, a stack of such arrays, or, in the two optimizers that `_kept_axes` knows, a reduction of the parameter over some
axes.

Some optimizers keep what cannot be divided between two leaves, or carried across a transpose. They are listed by the class of
their state, and refused.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying import transforms
from tiejax.tying.errors import TieError
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path, path_name, state_tie
from tiejax.tying.transforms import Shape, described, swap_last_two

Keys = tuple[Any, ...]

RESTART = "start again with optimizer.init"
# States that are about the sum of both uses, or about all parameters, and so fit neither two leaves from one nor one from two.
INDIVISIBLE = {
    "ScaleByLBFGSState": "its weights are inner products over all parameters",
    "MomoState": "its gamma is an inner product over all parameters",
    "MomoAdamState": "its gamma is an inner product over all parameters",
    "ScaleByBacktrackingLinesearchState": "it holds the gradient at the present parameters, which changes with the tie",
    "ScaleByZoomLinesearchState": "it holds the gradient at the present parameters, which changes with the tie",
}
# Fields of states that hold values of the parameters, which a tie scales and casts as it does the parameters themselves.
PARAMETERS = {
    *(("COCOBState", "init_particles"), ("DoGState", "init_params"), ("DoWGState", "init_params"), ("MadgradState", "x0")),
    *(("MechanicState", "x0"), ("ProdigyState", "params0"), ("SAMState", "cache"), ("ScheduleFreeState", "z")),
    ("ScaleByDistanceOverGradientsState", "init_params"),
}
# Counters and marks that do not belong to moments beside which they stand, so that new ones may begin at any of their values;
# `mini_step` only at 0 (`check_accumulated`).
UNRELATED = ("mini_step", "gradient_step", "steps_since_sync")
KNOWN = ("optax.", "tiejax.")  # packages whose states of a parameter's shape hold a number for each entry
# States whose leaves for a transposed parameter do not follow from those of the parameter.
NOT_TRANSFORMED = {"GaLoreState": "it projects a matrix and its transpose onto different subspaces"}


class OwnedLeaf(NamedTuple):
    """A leaf of an optimizer state that belongs to one parameter; its path is `prefix + owner + suffix`.

    prefix: path of the subtree with the structure of the parameters, such as `0/mu/`. owner: path of the parameter. suffix:
    rest of the path, such as `/0`, where an optimizer keeps several arrays for a parameter. classes: names of the classes of
    the state that contain the subtree, the outermost first; none for a leaf of the parameters themselves. by_entry: whether an
    array of the parameter's shape is known to hold one number for each entry; others may be factors, such as those of Shampoo
    for the rows and columns of a square matrix.
    """

    prefix: str
    owner: str
    suffix: str
    classes: tuple[str, ...]
    by_entry: bool = True

    @property
    def field(self) -> str:
        """Name of the subtree, such as `mu`."""
        return self.prefix.rstrip("/").rpartition("/")[2]

    @property
    def is_value(self) -> bool:
        """Whether it holds values of a parameter: the parameter itself, or one that a state remembers."""
        return not self.classes or (self.classes[-1], self.field) in PARAMETERS

    def path(self, owner: str | None = None) -> str:
        """Return the path of this leaf, or of the corresponding leaf of another parameter."""
        return f"{self.prefix}{self.owner if owner is None else owner}{self.suffix}"


def parameter_leaves(params: PyTree) -> dict[str, OwnedLeaf]:
    """Return the leaves of the parameters themselves, by path, in the form of the leaves of a state."""
    return {path: OwnedLeaf("", path, "", ()) for path in leaves_by_path(params)[0]}


def owned_leaves(state: PyTree, params: PyTree) -> dict[str, OwnedLeaf]:
    """Return the leaves of an optimizer state of `params` that belong to single parameters, by path as in `leaves_by_path`.

    state: any optimizer state, or a tree like `params`; its leaves may be shapes and dtypes. params: full or stored.
    """
    found: dict[str, OwnedLeaf] = {}

    def visit(node: PyTree, keys: Keys, classes: tuple[type, ...]) -> bool:
        """Record the innermost subtrees with the structure of `params`; return whether there are any in `node`."""
        inside = (*classes, type(node))
        deeper = [visit(child, (*keys, key), inside) for key, child in _children(node).items()]
        if any(deeper):
            return True
        prefix = f"{path_name(keys)}/" if keys else ""
        names = tuple(one.__name__ for one in classes) or (type(node).__name__,)  # a state may be a bare tree
        field = prefix.rstrip("/").rpartition("/")[2]  # a wrapper's field may hold the state of any optimizer
        by_entry = bool(classes) and classes[-1].__module__.startswith(KNOWN) and not field.endswith(("state", "states"))
        leaves = [
            (OwnedLeaf(prefix, path_name(owner), f"/{path_name(rest)}" if rest else "", names, by_entry), leaf)
            for owner, part in _by_parameter(params, node) or ()
            for rest, leaf in jax.tree_util.tree_flatten_with_path(part)[0]
        ]
        # Tuples of parameters have the structure of some chains of optimizers, whose counts are not of a parameter.
        if any(one.suffix and shape_and_dtype(leaf)[0] == () for one, leaf in leaves):
            return False
        found.update({one.path(): one for one, _ in leaves})
        return bool(leaves)

    visit(state, (), ())
    return found


def _children(node: PyTree) -> dict[Any, PyTree]:
    """Return the direct children of a node by key; a leaf, like None, has none."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda child: child is not node)
    return {keys[0]: child for keys, child in pairs if keys}


def _by_parameter(params: PyTree, node: PyTree) -> list[tuple[Keys, PyTree]] | None:
    """Return the subtree of each parameter, or None if `node` does not have the structure of `params`.

    Empty subtrees, such as `optax.MaskedNode`, may replace parts of the structure.
    """
    mine = _children(params)
    if not mine:
        return [((), node)]
    if not jax.tree.leaves(node):
        return []
    theirs = _children(node)
    if type(params) is not type(node) or mine.keys() != theirs.keys():
        return None
    pairs: list[tuple[Keys, PyTree]] = []
    for key, child in mine.items():
        inner = _by_parameter(child, theirs[key])
        if inner is None:
            return None
        pairs += [((key, *keys), part) for keys, part in inner]
    return pairs


def shapes_by_path(params: PyTree) -> dict[str, Shape]:
    """Return the shapes of the leaves of a tree."""
    return {path: shape_and_dtype(leaf)[0] for path, leaf in leaves_by_path(params)[0].items() if leaf is not None}


def shape_and_dtype(leaf: Any) -> tuple[Shape, Any]:
    """Return the shape of a leaf and its dtype; those of a Python number, or of no array, are () and None."""
    return tuple(getattr(leaf, "shape", ())), getattr(leaf, "dtype", None)


def fits(leaf: Any, like: Any) -> bool:
    """Whether both are leaves of one shape and dtype; a Python number has any dtype."""
    if leaf is None or like is None:
        return False
    (shape, dtype), (wanted, wanted_dtype) = shape_and_dtype(leaf), shape_and_dtype(like)
    return shape == wanted and (None in (dtype, wanted_dtype) or dtype == wanted_dtype)


def fitted(state: PyTree, like: PyTree) -> PyTree:
    """Return an optimizer state in the containers of `like`, the shapes and dtypes of what the optimizer's `init` returns.

    Raises TieError if a leaf is missing, superfluous, or of another shape or dtype.
    """
    leaves, (wanted, treedef) = leaves_by_path(state)[0], leaves_by_path(like)
    for path in {**wanted, **leaves}:
        leaf, expected = leaves.get(path), wanted.get(path)
        if leaf is None and expected is not None:
            raise TieError(f"the optimizer state has no {path}: it belongs to another optimizer or to other parameters")
        if leaf is not None and expected is None:
            raise TieError(
                f"the optimizer state has {path}, which optimizer.init does not return: it belongs to another optimizer or to "
                "other parameters, or an update added it, as optax.monitor adds measurements; then leave it out"
            )
        if leaf is not None and not fits(leaf, expected):
            raise TieError(
                f"{_described(path, leaf)} of the optimizer state: optimizer.init returns {_described('', expected)}"
            )
        dtype = shape_and_dtype(expected)[1]
        if leaf is not None and not hasattr(leaf, "dtype") and dtype is not None:
            leaves[path] = jnp.asarray(leaf, dtype)
    return jax.tree_util.tree_unflatten(treedef, [leaves.get(path) for path in wanted])


def _described(path: str, leaf: Any) -> str:
    shape, dtype = shape_and_dtype(leaf)
    return f"{path} {shape} {dtype or type(leaf).__name__}".lstrip()


def check_divisible(leaf: OwnedLeaf) -> None:
    """Raise TieError if the leaf is of a state that can be neither divided between two leaves nor joined."""
    for name in leaf.classes:
        if name in INDIVISIBLE:
            raise TieError(f"{leaf.path()} of the optimizer state ({name}) cannot be kept: {INDIVISIBLE[name]}; {RESTART}")


def check_accumulated(opt_state: PyTree, policy: str | None) -> None:
    """Raise TieError if `optax.MultiSteps` is between two updates, or may be and the policy is `zero`."""
    for path, value in leaves_by_path(opt_state)[0].items():
        if path.rpartition("/")[2] != "mini_step" or shape_and_dtype(value)[1] not in (None, jnp.int32):
            continue
        if isinstance(value, jax.core.Tracer):
            if policy == "zero":
                raise TieError(
                    f"policy 'zero' cannot restart the mean of gradients of MultiSteps, except where {path} of the optimizer "
                    "state is known to be 0; take 'copy' or 'zero-keep-count', or untie outside of compiled functions"
                )
        elif not isinstance(value, jax.ShapeDtypeStruct) and np.any(value):
            raise TieError(
                f"{path} of the optimizer state is not 0: MultiSteps is between two updates, and would take the mean of "
                "gradients of tied and of untied leaves; end and begin ties where it is 0"
            )


def counter_beside(leaf: OwnedLeaf, state: Mapping[str, Any], owned: Mapping[str, OwnedLeaf]) -> str | None:
    """Return the path of a counter or mark of all parameters in the part of the state that contains a leaf, or None.

    state: the leaves of the state, or their shapes and dtypes, by path.
    """
    part = leaf.prefix.removesuffix(f"{leaf.field}/")
    for path, other in state.items():
        name, (shape, dtype) = path.removeprefix(part), shape_and_dtype(other)
        counts = shape == () and dtype is not None and dtype.kind in "iub"
        if path.startswith(part) and "/" not in name and counts and path not in owned and name not in UNRELATED:
            return path
    return None


def mixed(path: str, leaf: Any) -> TieError:
    """Return the error about a leaf that belongs to neither one parameter nor all of them together."""
    return TieError(
        f"{_described(path, leaf)} of the optimizer state mixes parameters, as under optax.flatten (train without it, or "
        f"{RESTART}), or has another path than its parameter, as under optax.lookahead (pass the inner optimizer and its state)"
    )


def check_separate(state: PyTree, owned: Mapping[str, OwnedLeaf], ties: Sequence[Tie], params: PyTree) -> None:
    """Raise TieError if a leaf that no single parameter owns could hold the state of tied ones, judged by its size.

    What optimizers keep for all parameters together is small: counts, rates, coefficients.
    """
    if not ties:
        return
    shapes = shapes_by_path(params)
    largest = max(math.prod(shapes[tie.source]) for tie in ties)
    for path, shape in shapes_by_path(state).items():
        if path not in owned and shape and math.prod(shape) >= largest:
            raise mixed(path, leaves_by_path(state)[0][path])


def is_lost(tie: Tie, leaf: OwnedLeaf, value: Any) -> bool:
    """Whether a leaf of the source's state, `value`, cannot be mapped to the target's, because of a pair of functions."""
    return not leaf.is_value and shape_and_dtype(value)[0] != () and state_tie(tie) is None


def counterpart(tie: Tie, leaves: Mapping[str, Any], to: OwnedLeaf, like: Any, shape: Shape, back: bool = False) -> Any:
    """Return the leaf `to` of a tie's target, given that of its source: of the parameters, or of their optimizer state.

    In a state, entries move as in the parameters, but are neither scaled nor cast, except those that are values of parameters.
    Raises TieError if the state has no such leaf, or its transform is unknown.

    leaves: of the parameters or of the optimizer state, by path. like: the present leaf, or its shape and dtype, which the
    result has as well. shape: of the source. back: compute the leaf of the source from the target's instead; `like` has the
    entries that the target does not read.
    """
    origin = tie.target if back else tie.source
    leaf = leaves.get(to.path(origin))
    if leaf is None:
        instead = "tie with retie(..., keep='source')" if back else "untie with policy='split'"
        raise TieError(
            f"{tie}: the optimizer state has no {to.path(origin)}, which corresponds to {to.path()}: the optimizer treats the "
            "two leaves differently, as optax.multi_transform does with two labels; give both one label, or "
            f"{instead}, or {RESTART}"
        )
    by = tie if to.is_value else state_tie(tie)
    scaled = any(isinstance(part, transforms.Scale) for part in transforms.parts(tie.transform))
    unclear = not to.by_entry or to.classes[-1:] == ("EmaState",)  # an average of gradients or, of one's own, of parameters
    if scaled and not to.is_value and unclear and by is not None and jnp.ndim(leaf):
        raise TieError(
            f"{tie}: {to.path(origin)} of the optimizer state ({('no class', *to.classes)[-1]}) may hold moments, which are"
            f" not scaled, or values of the parameter, which are; {RESTART}"
        )
    if by is None and is_lost(tie, to, like if back else leaf):
        raise TieError(
            f"{tie}: {to.path(tie.source)} of the optimizer state cannot be carried through a pair of functions; use a policy "
            "that replaces it ('zero', 'zero-keep-count' or 'split'; for retie, keep='source'), or, if the functions only move "
            "entries, Functions(forward, inverse, rearranges=True)"
        )
    if by is None or by.transform == "identity":
        found = leaf
    elif to.is_value:
        found = transforms.put(by.transform, like, leaf) if back else apply_transform(by, leaf)
    else:
        found = _moved(by, leaves, to, like, shape, back)
    wanted, dtype = shape_and_dtype(like)
    if found is None or jnp.shape(found) != wanted:
        reason = next((f": {NOT_TRANSFORMED[name]}" for name in to.classes if name in NOT_TRANSFORMED), "")
        if not to.by_entry and wanted == jnp.shape(leaf):
            reason = ": it may hold moments, or factors of rows or columns, as in Shampoo, which would have to be exchanged"
        where = f"{_described(to.path(origin), leaf)} of the optimizer state ({('no class', *to.classes)[-1]})"
        raise TieError(f"{tie}: the {described(tie.transform)} of {where} is unknown{reason}; {RESTART}")
    return found if dtype in (None, shape_and_dtype(found)[1]) else jnp.asarray(found, dtype)


def _moved(by: Tie, leaves: Mapping[str, Any], to: OwnedLeaf, like: Any, shape: Shape, back: bool) -> Any:
    """Return the leaf `to` of a state, whose entries move as `by` says; None if it is unknown. See `counterpart`."""
    leaf = leaves[to.path(by.target if back else by.source)]
    if any(name in NOT_TRANSFORMED for name in to.classes):
        return None
    if math.prod(jnp.shape(leaf)) == 1 and jnp.shape(leaf) == shape_and_dtype(like)[0]:
        return leaf  # one number for the parameter, or a placeholder of Adafactor
    target_shape = transforms.result(by.transform, jax.ShapeDtypeStruct(shape, jnp.float32)).shape
    if target_shape == shape and not to.by_entry:
        return None
    if _is_reduction(to):
        return _moved_reduction(by, leaves, to, shape, back)

    def move(leaf: Any, source: Any) -> Any:
        return transforms.put(by.transform, source, leaf) if back else apply_transform(by, leaf)

    source = like if back else leaf
    stack, own = jnp.shape(source)[: jnp.ndim(source) - len(shape)], jnp.shape(source)[jnp.ndim(source) - len(shape) :]
    if own != shape or jnp.shape(leaf)[: len(stack)] != stack:
        return None
    for _ in stack:
        move = jax.vmap(move)
    return move(leaf, source)


def _is_reduction(leaf: OwnedLeaf) -> bool:
    """Whether a leaf is a reduction of its parameter: a row or column moment of Adafactor, or an accumulator of SM3."""
    factored = leaf.classes[-1:] == ("FactoredState",) and leaf.field in ("v_row", "v_col")
    return factored or (leaf.classes[-1:] == ("ScaleBySM3State",) and leaf.suffix != "")


def _kept_axes(leaf: OwnedLeaf, shape: Shape) -> tuple[int, ...]:
    """Return the axes of a parameter `[shape]` that a reduction keeps.

    Adafactor's `v_row` is a mean over the largest axis, `v_col` one over the second largest (the last of equal axes is the
    largest). SM3 has one array per axis.
    """
    if leaf.suffix:
        return (int(leaf.suffix[1:]),)
    reduced = np.argsort(shape)[-1 if leaf.field == "v_row" else -2]
    return tuple(axis for axis in range(len(shape)) if axis != reduced)


def _siblings(leaf: OwnedLeaf, axes: int) -> list[OwnedLeaf]:
    """Return all reductions of the same parameter in the same state."""
    if leaf.suffix:
        return [leaf._replace(suffix=f"/{axis}") for axis in range(axes)]
    outer = leaf.prefix.removesuffix(f"{leaf.field}/")
    return [leaf._replace(prefix=f"{outer}{field}/") for field in ("v_row", "v_col")]


def _moved_reduction(by: Tie, leaves: Mapping[str, Any], to: OwnedLeaf, shape: Shape, back: bool) -> Any:
    """Transform the reduction over the axes that correspond to those that `to` reduces; None if `by` is no transpose."""
    if by.transform != "transpose":
        return None
    origin, shape, result = (by.target, swap_last_two(shape), shape) if back else (by.source, shape, swap_last_two(shape))
    kept, permutation = _kept_axes(to, result), swap_last_two(tuple(range(len(shape))))
    wanted = tuple(sorted(permutation[axis] for axis in kept))
    for sibling in _siblings(to, len(shape)):
        leaf = leaves.get(sibling.path(origin))
        if leaf is None or _kept_axes(sibling, shape) != wanted:
            continue
        if jnp.shape(leaf) == tuple(shape[axis] for axis in wanted):
            in_place = leaf.reshape([size if axis in wanted else 1 for axis, size in enumerate(shape)])
            return in_place.swapaxes(-1, -2).reshape([result[axis] for axis in kept])
    return None
