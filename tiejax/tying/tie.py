"""A tie as data: the paths of two leaves, the transform between them, and the share of each use's gradient."""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from tiejax.tying.errors import TieError
from tiejax.tying.transforms import TRANSFORMS, TransformName, compose
from tiejax.tying.weighted import Weight, broadcasts_to, known_equal

PyTree = Any
NNX_SUFFIX = "/value"  # ends the path of the leaf of an NNX variable


@dataclasses.dataclass(frozen=True)
class Tie:
    """A tie between two leaves of a parameter tree: `target` reads the array of `source`.

    Paths are the keys, indices and attribute names that lead to a leaf, joined by slashes, as in `embed/embedding`. A `*` in
    `source` matches any run of characters, slashes included; `target` must contain the same number of `*`, which are filled in
    order: `Tie("block_0/*", "block_1/*")` ties every leaf of two blocks. In a path without `*` the final `/value` of an NNX
    variable may be omitted.

    A tie does not refer to a tree. Paths, shapes and dtypes are checked when it is applied to one, as in `store` and `view`.

    Attributes:
        source: Path of the leaf that is stored, or a pattern.
        target: Path of the leaf that reads it, or a pattern.
        transform: How the target transforms the source's array: `"identity"`, or `"transpose"` of the last two axes.
        gradient: Which uses train the array: `"all"`, the sum over both; `"owner"`, the source's use alone; or two weights
            `(a, b)`, numbers or arrays that broadcast to the source's shape: the array receives a times the gradient of the
            source's use plus b times the (transformed back) gradient of the target's use. `"all"` is (1, 1) and `"owner"` is
            (1, 0). Weights of a tie that is created inside a traced function may be traced; changing them causes no
            recompilation. Ties with array weights can be neither compared nor hashed.

    Raises:
        TieError: `transform` or `gradient` is invalid, or `source` and `target` differ in their number of `*`.

    Examples:
        >>> Tie("embed/embedding", "head/kernel", transform="transpose")
        Tie(source='embed/embedding', target='head/kernel', transform='transpose', gradient='all')
        >>> Tie("block_0/*", "block_1/*", gradient=(1.0, 0.25)).weights
        (1.0, 0.25)
    """

    source: str
    target: str
    transform: TransformName = "identity"
    gradient: Literal["all", "owner"] | tuple[Weight, Weight] = "all"

    def __post_init__(self) -> None:
        if self.transform not in TRANSFORMS:
            raise TieError(f"{self}: transform must be {_either(TRANSFORMS)}, got {self.transform!r}")
        weights = self.gradient if isinstance(self.gradient, tuple) else ()
        are_weights = len(weights) == 2 and all(isinstance(one, int | float) or hasattr(one, "dtype") for one in weights)
        if not are_weights and (weights or self.gradient not in ("all", "owner")):
            raise TieError(f"{self}: gradient must be 'all', 'owner' or two weights (a, b), got {self.gradient!r}")
        if self.source.count("*") != self.target.count("*"):
            raise TieError(
                f"{self}: source and target must contain the same number of '*', "
                f"got {self.source.count('*')} and {self.target.count('*')}"
            )

    def __str__(self) -> str:
        return f"tie {self.source} -> {self.target}"

    @property
    def weights(self) -> tuple[Weight, Weight]:
        """Weights (a, b) of the gradients of the source's and the target's use."""
        if isinstance(self.gradient, tuple):
            return self.gradient
        return (1.0, 1.0) if self.gradient == "all" else (1.0, 0.0)


def _either(names: Sequence[str] | dict[Any, Any]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}"


def apply_transform(tie: Tie, x: Any) -> Any:
    """Map the source's array to the target's."""
    return TRANSFORMS[tie.transform].apply(x)


def invert_transform(tie: Tie, x: Any) -> Any:
    """Map an array of the target, such as its gradient, to the source's layout."""
    return TRANSFORMS[TRANSFORMS[tie.transform].inverse].apply(x)


def path_name(path: tuple[Any, ...]) -> str:
    """Format a jax key path as `a/b/c`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def leaves_by_path(tree: PyTree) -> tuple[dict[str, Any], Any]:
    """Return the leaves of `tree` by path, counting `None` as a leaf, and the treedef that rebuilds the tree.

    Raises TieError if two leaves have the same path.
    """
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: leaf is None)
    leaves = {path_name(path): leaf for path, leaf in pairs}
    if len(leaves) != len(pairs):
        names = [path_name(path) for path, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TieError(f"two leaves have the path {twice}; rename one so that a tie can tell them apart")
    return leaves, treedef


def _describe(path: str, leaf: Any) -> str:
    return f"{path} {tuple(jnp.shape(leaf))} {jnp.result_type(leaf)}"


def _expand(tie: Tie, paths: Sequence[str]) -> list[Tie]:
    """Expand a tie with `*` to one tie per pair of leaves."""
    if "*" not in tie.source:
        return [tie]
    pattern = re.compile("(.*)".join(re.escape(part) for part in tie.source.split("*")))
    expanded = []
    for path in paths:
        if match := pattern.fullmatch(path):
            target = tie.target
            for group in match.groups():
                target = target.replace("*", group, 1)
            expanded.append(dataclasses.replace(tie, source=path, target=target))
    if not expanded:
        raise TieError(f"{tie}: no leaf matches {tie.source}; the leaves are {', '.join(paths)}")
    return expanded


def _check_leaf(tie: Tie, path: str, leaves: dict[str, Any], missing_is_none: bool) -> None:
    if path in leaves and (leaves[path] is not None or missing_is_none):
        return
    near = difflib.get_close_matches(path, leaves, n=3, cutoff=0.3) or list(leaves)
    raise TieError(f"{tie}: no leaf {path}; did you mean {', '.join(near)}?")


def resolve(ties: Sequence[Tie], params: PyTree) -> tuple[Tie, ...]:
    """Check ties against a tree, and return one tie per target, whose source is the leaf that is stored.

    Patterns are expanded, and chains resolved: a -> b, b -> c becomes a -> b, a -> c. In a tree that `store` returned the
    targets are `None` and their shapes are not compared.

    Args:
        ties: Ties between leaves of `params`.
        params: Full or stored parameters: a tree of arrays, or of shapes and dtypes as `jax.eval_shape` returns.

    Returns:
        Ties without patterns, in the order of `ties`.

    Raises:
        TieError: A leaf is missing, a pattern matches no leaf, a leaf has two sources, ties form a cycle, shapes or dtypes
            differ, gradient weights do not broadcast to the source, or several ties of a source weight its own use differently.
    """
    leaves, _ = leaves_by_path(params)
    given = [_as_stored(one, leaves) for tie in ties for one in _expand(tie, list(leaves))]
    by_target: dict[str, Tie] = {}
    for tie in given:
        if tie.target in by_target:
            raise TieError(f"{tie}: {tie.target} already reads {by_target[tie.target].source}; remove one of the two ties")
        by_target[tie.target] = tie

    resolved = []
    for tie in given:
        root, seen = tie, [tie.target]
        while root.source in by_target:
            seen.append(root.source)
            link = by_target[root.source]
            if link.source in seen:
                raise TieError(f"{tie}: ties form a cycle: {' <- '.join([*seen, link.source])}")
            root = _chain(link, root, name=str(tie))
        if root.source == root.target:
            raise TieError(f"{tie}: ties form a cycle: {root.source} would read itself")
        _check_leaf(tie, root.source, leaves, missing_is_none=False)
        _check_leaf(tie, root.target, leaves, missing_is_none=True)
        _check_fit(root, leaves[root.source], leaves[root.target])
        resolved.append(root)
    _check_weights(resolved)
    return tuple(resolved)


def _chain(first: Tie, second: Tie, name: str) -> Tie:
    """Return the tie from the source of `first` to the target of `second`, where `second` reads the target of `first`."""
    if isinstance(first.gradient, tuple) or isinstance(second.gradient, tuple):
        raise TieError(f"{name}: ties in a chain cannot have gradient weights; let both ties read {first.source}")
    transform = compose(first.transform, second.transform)
    if transform is None:
        raise TieError(
            f"{name}: no transform equals {first.transform} followed by {second.transform}; let both ties read {first.source}"
        )
    gradient: Literal["all", "owner"] = "all" if first.gradient == second.gradient == "all" else "owner"
    return dataclasses.replace(second, source=first.source, transform=transform, gradient=gradient)


def _as_stored(tie: Tie, leaves: dict[str, Any]) -> Tie:
    """Complete paths that omit the `/value` of an NNX variable."""

    def path(name: str) -> str:
        return f"{name}{NNX_SUFFIX}" if name not in leaves and f"{name}{NNX_SUFFIX}" in leaves else name

    source, target = path(tie.source), path(tie.target)
    same = (source, target) == (tie.source, tie.target)
    return tie if same else dataclasses.replace(tie, source=source, target=target)


def _check_weights(resolved: Sequence[Tie]) -> None:
    """Raise TieError if several ties of one source give the source's own use different weights."""
    by_source: dict[str, Tie] = {}
    for tie in resolved:
        first = by_source.setdefault(tie.source, tie)
        if not known_equal(tie.weights[0], first.weights[0]):
            raise TieError(f"{tie}: {first} weights the use of {tie.source} differently; give both ties the same weight")


def _check_fit(tie: Tie, source: Any, target: Any) -> None:
    shape = tuple(jnp.shape(source))
    transform = TRANSFORMS[tie.transform]
    if len(shape) < transform.axes:
        raise TieError(f"{tie}: {tie.transform} needs at least {transform.axes} axes, got {_describe(tie.source, source)}")
    for weight in tie.weights:
        if not broadcasts_to(weight, shape):
            found = f"gradient weights of shape {tuple(jnp.shape(weight))}"
            raise TieError(f"{tie}: {found} do not broadcast to {_describe(tie.source, source)}")
    if target is None:
        return
    wanted, same_dtype = tuple(jnp.shape(target)), jnp.result_type(source) == jnp.result_type(target)
    if transform.shape(shape) == wanted and same_dtype:
        return
    fitting = [name for name, one in TRANSFORMS.items() if len(shape) >= one.axes and one.shape(shape) == wanted]
    result = "" if tie.transform == "identity" else f", after {tie.transform} {transform.shape(shape)},"
    advice = "" if same_dtype else "; cast one of them"
    if fitting and tie.transform not in fitting:
        advice = f"; transform={fitting[0]!r} fits the shapes"
    both = f"{_describe(tie.source, source)}{result} and {_describe(tie.target, target)}"
    raise TieError(f"{tie}: shapes or dtypes differ: {both}{advice}")
