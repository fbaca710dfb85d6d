"""Ties resolved against a tree: one per target, without patterns, each from the leaf that is stored."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying import transforms
from tiejax.tying.errors import TieError, short
from tiejax.tying.leaves import is_array, is_label, is_number, is_partition, nnx_variables, tieable
from tiejax.tying.patterns import completed, expand, listed, nearest, reached
from tiejax.tying.tie import PyTree, Tie, broadcasts_to, hashable, leaves_by_path, with_name
from tiejax.tying.transforms import compose, described, swap_last_two

TiesLike = Tie | Sequence[Tie]  # one tie or several; `Ties` is a sequence of them


@jax.tree_util.register_static
class Ties(tuple[Tie, ...]):
    """Resolved ties, as `resolve` returns them: a tuple of `Tie` with one tie per target and without patterns or chains.

    Every function that takes ties takes this object. Patterns and chains are then not resolved again, which saves time when a
    model with many leaves is traced. It can be hashed, and jax treats it as a static node without leaves, so that it can be an
    argument of a compiled function, or part of a train state; a change of ties compiles the function again.

    Args:
        ties: Ties without patterns, none of whose sources is a target.

    Raises:
        TieError: A tie has a pattern, a leaf is the target of two ties, or a source is itself a target. `resolve(ties, params)`
            resolves such ties.

    Examples:
        >>> import jax
        >>> import numpy as np
        >>> params = {"embed": np.ones((3, 2)), "head": np.zeros((2, 3))}
        >>> ties = resolve(Tie("embed", "head", transform="transpose"), params)
        >>> ties[0].target, jax.tree.leaves(ties)
        ('head', [])
    """

    _hash: int | None = None

    def __new__(cls, ties: Iterable[Tie] = ()) -> "Ties":
        """Check the ties."""
        given = as_ties(tuple(ties))
        targets, first = {tie.target for tie in given}, {tie.source: tie for tie in reversed(given)}
        for tie in given:
            if "*" in tie.target or tie.source in targets or len(targets) < len(given):
                raise TieError(f"{tie} is not resolved, or another tie has its target; write resolve(ties, params)")
            if hashable(tie.weights[0]) != hashable(first[tie.source].weights[0]):
                raise TieError(
                    f"{tie}: {first[tie.source]} weights the use of {tie.source} differently; give both ties the same weight"
                )
        return super().__new__(cls, given)

    def __hash__(self) -> int:
        if self._hash is None:  # a compiled function hashes its static arguments at every call
            self._hash = super().__hash__()
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Ties, (tuple(self),)  # without the hash, which another process computes from other hashes of strings

    def __repr__(self) -> str:
        return f"Ties({super().__repr__()})"


def as_ties(ties: Any) -> tuple[Tie, ...]:
    """Return one tie or several as a tuple; raises TieError for anything else."""
    if isinstance(ties, Ties):
        return ties
    if isinstance(ties, Tie):
        return (ties,)
    found = tuple(ties) if isinstance(ties, Sequence) and not isinstance(ties, str | bytes) else (ties,)
    for one in found:
        if not isinstance(one, Tie):
            pair = isinstance(one, tuple | list) and len(one) == 2 and all(isinstance(path, str) for path in one)
            advice = f"write Tie({one[0]!r}, {one[1]!r})" if pair else "the tree comes first, then the ties"
            raise TieError(f"ties: expected a Tie or a list of them, got {type(one).__name__} {short(one)}; {advice}")
    return found


def resolve(ties: TiesLike, params: PyTree) -> Ties:
    """Check ties against a tree, and return one tie per target, whose source is the leaf that is stored.

    Patterns are expanded, and chains resolved: a -> b, b -> c becomes a -> b, a -> c. In stored parameters the targets are
    `None`, and their shapes are not compared.

    Args:
        ties: A tie or several, between leaves of `params`.
        params: Full or stored parameters: a tree of arrays, of shapes and dtypes as `jax.eval_shape` returns, or of partitions
            (`PartitionSpec` or shardings), whose shapes are not compared.

    Returns:
        Ties without patterns, in the order of `ties`.

    Raises:
        TieError: A leaf is missing, a pattern matches no leaf, a leaf has two sources, ties form a cycle, shapes or dtypes
            differ, gradient weights do not broadcast to the source, or several ties of a source weight its own use differently.
    """
    return resolve_leaves(ties, leaves_by_path(params)[0])


def resolve_full(ties: TiesLike, params: PyTree) -> Ties:
    """Resolve ties against full parameters, or gradients of them; raises TieError if `params` are stored."""
    leaves = leaves_by_path(params)[0]
    resolved = resolve_leaves(ties, leaves)
    for tie in resolved:
        if leaves[tie.target] is None:
            raise TieError(f"{tie}: {tie.target} is None; pass the full tree, as view(stored, ties) returns it")
    return resolved


def resolve_leaves(ties: TiesLike, leaves: Mapping[str, Any]) -> Ties:
    """Resolve ties against the leaves of a tree by path; see `resolve`."""
    are_resolved = isinstance(ties, Ties)
    given = as_ties(ties) if are_resolved else _from_roots(expanded(as_ties(ties), leaves))
    variables = nnx_variables(leaves)
    found = [_completed(tie, leaves, variables) for tie in given]
    for tie in found:
        _check_leaf(tie, tie.source, leaves)
        _check_leaf(tie, tie.target, leaves)
        if not (are_resolved and leaves[tie.target] is None):
            _check_fit(tie, leaves[tie.source], leaves[tie.target])
    same = are_resolved and all(one is other for one, other in zip(given, found, strict=True))
    return ties if same else Ties(found)  # type: ignore[return-value]


def expanded(ties: Sequence[Tie], leaves: Mapping[str, Any]) -> list[Tie]:
    """Return ties without patterns, in their order, with the `/value` of NNX variables that they omit.

    In stored parameters a pattern also matches the targets of other ties, which hold `None`.
    """
    arrays = tieable(leaves)
    if any(leaf is None for leaf in leaves.values()) and any("*" in tie.source for tie in ties):
        targets = reached([(tie.source, tie.target) for tie in ties], leaves, arrays, present=True)
        arrays = dict.fromkeys(path for path in leaves if path in arrays or path in targets)
    variables = nnx_variables(leaves)
    return [_completed(one, leaves, variables) for tie in ties for one in _expand(tie, leaves, arrays)]


def _expand(tie: Tie, leaves: Mapping[str, Any], arrays: Collection[str]) -> list[Tie]:
    if "*" not in tie.target:
        return [tie]
    pairs = with_name(tie, expand, tie.source, tie.target, leaves, arrays)
    return [dataclasses.replace(tie, source=source, target=target) for source, target in pairs]


def _completed(tie: Tie, leaves: Mapping[str, Any], variables: Collection[str]) -> Tie:
    """Return a tie with the `/value` of NNX variables that it omits; variables: the paths of all of them."""
    source, target = (completed(path, leaves, variables) for path in (tie.source, tie.target))
    return tie if (source, target) == (tie.source, tie.target) else dataclasses.replace(tie, source=source, target=target)


def _from_roots(ties: Sequence[Tie]) -> list[Tie]:
    """Return one tie per target, whose source is no target: a -> b, b -> c becomes a -> b, a -> c."""
    by_target: dict[str, Tie] = {}
    for tie in ties:
        if tie.target in by_target:
            raise TieError(f"{tie}: {tie.target} already reads {by_target[tie.target].source}; remove one of the two ties")
        by_target[tie.target] = tie
    found = []
    for tie in ties:
        if tie.source == tie.target:
            raise TieError(
                f"{tie}: ties form a cycle: {tie.source} would read itself; layers in one stacked leaf are tied by an owner "
                "vector (owner_from_groups, slots)"
            )
        root, seen = tie, [tie.target]
        while root.source in by_target:
            seen.append(root.source)
            link = by_target[root.source]
            if link.source in seen:
                raise TieError(f"{tie}: ties form a cycle: {' <- '.join([*seen, link.source])}")
            root = _chain(link, root, name=str(tie))
        found.append(root)
    return found


def _chain(first: Tie, second: Tie, name: str) -> Tie:
    """Return the tie from the source of `first` to the target of `second`, where `second` reads the target of `first`."""
    if isinstance(first.gradient, tuple) or isinstance(second.gradient, tuple):
        raise TieError(f"{name}: ties in a chain cannot have gradient weights; let both ties read {first.source}")
    transform = compose(first.transform, second.transform)
    gradient: Literal["all", "source"] = "all" if first.gradient == second.gradient == "all" else "source"
    return dataclasses.replace(second, source=first.source, transform=transform, gradient=gradient)


def check_links(switches: Any, ties: TiesLike, leaves: Mapping[str, Any], name: str = "on") -> None:
    """Raise TieError if a link of a chain may be on without the link before it, and so read another leaf than its tie says.

    switches: one for each of several ties, perhaps traced. ties: not checked if they are resolved. name: of the argument.
    """
    if isinstance(ties, Ties):
        return
    links = expanded(as_ties(ties), leaves)
    by_target = {tie.target: number for number, tie in enumerate(links)}
    traced = any(isinstance(one, jax.core.Tracer) for one in jax.tree.leaves(switches))
    if not traced:
        switches = np.asarray(switches)  # in a compiled function, an element of a jax array would be traced
    for number, tie in enumerate(links):
        before = by_target.get(tie.source)
        if before is not None and (traced or (switches[number] and not switches[before])):
            raise TieError(
                f"{name}: {tie} is a link of a chain, and {'may be' if traced else 'is'} on without {links[before]}; give one "
                f"switch for all ties, or resolve(ties, params), in which {tie.target} reads the first leaf of the chain"
            )


def _check_leaf(tie: Tie, path: str, leaves: Mapping[str, Any]) -> None:
    """Raise TieError if a leaf is missing, or if the source is None."""
    if path not in leaves:
        near = [] if "" in leaves else nearest(path, leaves, 3)
        advice = f"did you mean {', '.join(near)}?" if near else listed(leaves)
        raise TieError(f"{tie}: no leaf {path}; {advice}")
    if path == tie.source and leaves[path] is None:
        raise TieError(
            f"{tie}: {path} is None; the source must hold an array. If the parameters are stored with ties, write the tie from "
            f"the leaf that {path} reads: Tie(..., {tie.target!r})"
        )


def _check_fit(tie: Tie, source: Any, target: Any) -> None:
    for path, leaf in ((tie.source, source), (tie.target, target)):
        if not (leaf is None or is_array(leaf) or is_number(leaf) or is_partition(leaf) or is_label(leaf)):
            raise TieError(f"{tie}: {path} is not an array but {type(leaf).__name__} {short(leaf)}")
    for kind, is_kind in (("partition", is_partition), ("label", is_label)):
        if is_kind(source) or is_kind(target):
            if target is not None and not (is_kind(source) and is_kind(target)):
                raise TieError(
                    f"{tie}: one leaf is a {kind} ({type(source).__name__}), the other not ({type(target).__name__})"
                )
            return
    shape = tuple(jnp.shape(source))
    try:
        result = transforms.result(tie.transform, jax.ShapeDtypeStruct(shape, jnp.result_type(source)))
    except TieError as error:
        raise TieError(f"{tie}: {error}, got {_describe(tie.source, source)}") from None
    for weight in tie.weights:
        if not broadcasts_to(weight, shape):
            found = f"gradient weights of shape {tuple(jnp.shape(weight))}"
            raise TieError(f"{tie}: {found} do not broadcast to {_describe(tie.source, source)}")
    if target is not None and (result.shape, result.dtype) != (tuple(jnp.shape(target)), jnp.result_type(target)):
        raise TieError(_mismatch(tie, source, target, result))


def _mismatch(tie: Tie, source: Any, target: Any, result: jax.ShapeDtypeStruct) -> str:
    """Return the message about a target whose shape or dtype is not that of the transformed source."""
    shape, wanted, dtype = tuple(jnp.shape(source)), tuple(jnp.shape(target)), jnp.result_type(target)
    fitting = [name for name, fit in (("identity", shape), ("transpose", swap_last_two(shape))) if fit == wanted]
    after = "" if tie.transform == "identity" else f", after {described(tie.transform)} {result.shape},"
    advice = "" if result.dtype == dtype else f"; cast one of them, or add Cast({str(dtype)!r}) to the transform"
    if fitting and result.shape != wanted:
        advice = f"; transform={fitting[0]!r} fits the shapes"
    return f"{tie}: shapes or dtypes differ: {_describe(tie.source, source)}{after} and {_describe(tie.target, target)}{advice}"


def _describe(path: str, leaf: Any) -> str:
    return f"{path} {tuple(jnp.shape(leaf))} {jnp.result_type(leaf)}"
