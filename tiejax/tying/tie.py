"""A tie as data: the paths of two leaves, the transform between them, and the share of each use's gradient."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying import transforms
from tiejax.tying.errors import TieError, short
from tiejax.tying.leaves import NNX_SUFFIX, is_array, is_number, is_partition
from tiejax.tying.patterns import expand, listed, nearest
from tiejax.tying.shardings import partition_of_target
from tiejax.tying.transforms import TRANSFORMS, AnyTransform, compose, described
from tiejax.tying.weighted import Weight, broadcasts_to, known_equal

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Tie:
    """A tie between two leaves of a parameter tree: `target` reads the array of `source`.

    Paths are the keys, indices and attribute names that lead to a leaf, joined by slashes, as in `embed/embedding`. The final
    `/value` of an NNX variable may be omitted. A `*` in `source` matches any run of characters, slashes included, and stands
    for the same run in `target`: `Tie("block_0/*", "block_1/*")` ties every array of two blocks. If `target` has more `*` than
    `source`, its first ones match any run without slashes, so that one source has several targets: `Tie("embed", "head_*")`,
    or `Tie("layers/0/*", "layers/*/*")`, which ties all layers. `block_1*` also matches `block_10`; write `block_1/*`.
    Patterns match arrays only, not functions, numbers or `None`.

    A tie does not refer to a tree. Paths, shapes and dtypes are checked when it is applied to one, as in `store` and `view`.

    Attributes:
        source: Path of the leaf that is stored, or a pattern.
        target: Path of the leaf that reads it, or a pattern.
        transform: How the target transforms the source's array: `"identity"`; `"transpose"` of the last two axes; `Cast`,
            `Scale`, `Reshape` or `Slice` (in `tiejax.tying`); a pair of functions `(forward, inverse)`, see
            `tiejax.tying.Functions`; or a list of transforms, applied in order.
        gradient: Which uses train the array: `"all"`, the sum over both; `"owner"`, the source's use alone; or two weights
            `(a, b)`, numbers or arrays that broadcast to the source's shape: the array receives a times the gradient of the
            source's use plus b times the (transformed back) gradient of the target's use. `"all"` is (1, 1) and `"owner"` is
            (1, 0). A list may stand for the pair, or for an array. Weights of a tie that is created inside a traced function
            may be traced; changing them causes no recompilation. Ties with array weights can be neither compared nor hashed.

    Raises:
        TieError: A path is not a string, `transform` or `gradient` is invalid, or `source` has more `*` than `target`.

    Examples:
        >>> Tie("embed/embedding", "head/kernel", transform="transpose")
        Tie(source='embed/embedding', target='head/kernel', transform='transpose', gradient='all')
        >>> Tie("block_0/*", "block_1/*", gradient=(1.0, 0.25)).weights
        (1.0, 0.25)
    """

    source: str
    target: str
    transform: AnyTransform = "identity"
    gradient: Literal["all", "owner"] | tuple[Weight, Weight] | list[Any] = "all"

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            path = getattr(self, name)
            if not isinstance(path, str):
                joined = "/".join(map(str, path)) if isinstance(path, tuple | list) else "embed/embedding"
                raise TieError(f"{name}: expected a path such as {joined!r}, got {short(path)}")
        try:
            object.__setattr__(self, "transform", transforms.normalised(self.transform))
        except TieError as error:
            raise TieError(f"{self}: {error}") from None
        if isinstance(self.gradient, tuple | list | np.ndarray):
            object.__setattr__(self, "gradient", tuple(map(_weight, self.gradient)))
        weights = self.gradient if isinstance(self.gradient, tuple) else ()
        are_weights = len(weights) == 2 and all(isinstance(one, int | float) or hasattr(one, "dtype") for one in weights)
        if not are_weights and (weights or self.gradient not in ("all", "owner")):
            raise TieError(f"{self}: gradient must be 'all', 'owner' or two weights (a, b), got {self.gradient!r}")
        if self.source.count("*") > self.target.count("*"):
            raise TieError(
                f"{self}: source and target must contain the same number of '*', "
                f"got {self.source.count('*')} and {self.target.count('*')}; only target may contain more"
            )

    def __str__(self) -> str:
        return f"tie {self.source} -> {self.target}"

    @property
    def weights(self) -> tuple[Weight, Weight]:
        """Weights (a, b) of the gradients of the source's and the target's use."""
        if isinstance(self.gradient, tuple):
            return self.gradient
        return (1.0, 1.0) if self.gradient == "all" else (1.0, 0.0)


Ties = Tie | Sequence[Tie]  # one tie or several


def _weight(weight: Any) -> Any:
    """Return a gradient weight, with a list converted to an array."""
    if not isinstance(weight, list | tuple):
        return weight
    array = np.asarray(weight)
    return array if array.dtype.kind in "fiu" else weight


def as_ties(ties: Any) -> tuple[Tie, ...]:
    """Return one tie or several as a tuple; raises TieError for anything else."""
    if isinstance(ties, Tie):
        return (ties,)
    found = tuple(ties) if isinstance(ties, Sequence) and not isinstance(ties, str | bytes) else (ties,)
    for one in found:
        if not isinstance(one, Tie):
            pair = isinstance(one, tuple | list) and len(one) == 2 and all(isinstance(path, str) for path in one)
            advice = f"write Tie({one[0]!r}, {one[1]!r})" if pair else "the tree comes first, then the ties"
            raise TieError(f"ties: expected a Tie or a list of them, got {type(one).__name__} {short(one)}; {advice}")
    return found


def apply_transform(tie: Tie, x: Any) -> Any:
    """Map the source's array to the target's; or its shape and dtype, or its partition over devices."""
    if is_partition(x):
        return _with_name(tie, partition_of_target, tie.transform, x)
    if isinstance(x, jax.ShapeDtypeStruct):
        if tie.transform == "identity":
            return x
        found = _with_name(tie, transforms.result, tie.transform, x)
        sharding = None if x.sharding is None else _with_name(tie, partition_of_target, tie.transform, x.sharding)
        return jax.ShapeDtypeStruct(found.shape, found.dtype, sharding=sharding)
    return transforms.apply(tie.transform, x)


def invert_transform(tie: Tie, x: Any, source: Any = None) -> Any:
    """Map an array of the target to the source's layout; entries that the target does not read are those of `source`."""
    return transforms.put(tie.transform, source, x)


def adjoint_transform(tie: Tie, gradient: Any, source: Any) -> Any:
    """Map the gradient of the target's use to the source's layout; raises TieError if the transform is not linear."""
    return _with_name(tie, transforms.adjoint, tie.transform, gradient, source)


def state_tie(tie: Tie) -> Tie | None:
    """Return the tie between the optimizer states of two leaves: entries move as in the parameters, and keep their values.

    None if a pair of functions does not say that it rearranges entries.
    """
    transform = transforms.rearrangement(tie.transform)
    return None if transform is None else dataclasses.replace(tie, transform=transform)


def _with_name(tie: Tie, function: Any, *args: Any) -> Any:
    """Call a function, with the tie's name in its errors."""
    try:
        return function(*args)
    except TieError as error:
        raise TieError(f"{tie}: {error}") from None


def path_name(path: tuple[Any, ...]) -> str:
    """Format a jax key path as `a/b/c`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def leaves_by_path(tree: PyTree) -> tuple[dict[str, Any], Any]:
    """Return the leaves of `tree` by path, counting `None` as a leaf, and the treedef that rebuilds the tree.

    Raises TieError if two leaves have the same path, or if the tree holds ties.
    """
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: leaf is None)
    if any(isinstance(leaf, Tie) for _, leaf in pairs):
        raise TieError("expected a tree of arrays, got ties in its place; the tree comes first, then the ties")
    leaves = {path_name(path): leaf for path, leaf in pairs}
    if len(leaves) != len(pairs):
        names = [path_name(path) for path, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TieError(f"two leaves have the path {twice}; rename one so that a tie can tell them apart")
    return leaves, treedef


def _describe(path: str, leaf: Any) -> str:
    return f"{path} {tuple(jnp.shape(leaf))} {jnp.result_type(leaf)}"


def _expand(tie: Tie, leaves: dict[str, Any]) -> list[Tie]:
    """Expand a tie with `*` to one tie per pair of leaves."""
    if "*" not in tie.target:
        return [tie]
    pairs = _with_name(tie, expand, tie.source, tie.target, leaves)
    return [dataclasses.replace(tie, source=source, target=target) for source, target in pairs]


def _check_leaf(tie: Tie, path: str, leaves: dict[str, Any], missing_is_none: bool) -> None:
    if path not in leaves:
        near = nearest(path, leaves, 3)
        advice = f"did you mean {', '.join(near)}?" if near else listed(leaves)
        raise TieError(f"{tie}: no leaf {path}; {advice}")
    if leaves[path] is None and not missing_is_none:
        raise TieError(f"{tie}: {path} is None; the source must hold an array (was the tree stored with other ties?)")


def resolve(ties: Ties, params: PyTree) -> tuple[Tie, ...]:
    """Check ties against a tree, and return one tie per target, whose source is the leaf that is stored.

    Patterns are expanded, and chains resolved: a -> b, b -> c becomes a -> b, a -> c. In a tree that `store` returned the
    targets are `None` and their shapes are not compared.

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
    leaves, _ = leaves_by_path(params)
    given = [_as_stored(one, leaves) for tie in as_ties(ties) for one in _expand(tie, leaves)]
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


def resolve_full(ties: Ties, params: PyTree) -> tuple[Tie, ...]:
    """Resolve ties against full parameters, or gradients of them; raises TieError if `params` are stored."""
    resolved, leaves = resolve(ties, params), leaves_by_path(params)[0]
    for tie in resolved:
        if leaves[tie.target] is None:
            raise TieError(f"{tie}: {tie.target} is None; pass the full tree, as view(stored, ties) returns it")
    return resolved


def _chain(first: Tie, second: Tie, name: str) -> Tie:
    """Return the tie from the source of `first` to the target of `second`, where `second` reads the target of `first`."""
    if isinstance(first.gradient, tuple) or isinstance(second.gradient, tuple):
        raise TieError(f"{name}: ties in a chain cannot have gradient weights; let both ties read {first.source}")
    transform = compose(first.transform, second.transform)
    if transform is None:
        raise TieError(
            f"{name}: no transform equals {described(first.transform)} followed by {described(second.transform)}; "
            f"let both ties read {first.source}"
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
    for path, leaf in ((tie.source, source), (tie.target, target)):
        if not (leaf is None or is_array(leaf) or is_number(leaf) or is_partition(leaf)):
            raise TieError(f"{tie}: {path} is not an array but {type(leaf).__name__} {short(leaf)}")
    if is_partition(source) or is_partition(target):
        if target is not None and not (is_partition(source) and is_partition(target)):
            raise TieError(f"{tie}: one leaf is a partition ({type(source).__name__}), the other not ({type(target).__name__})")
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
    fitting = [name for name, one in TRANSFORMS.items() if len(shape) >= one.axes and one.shape(shape) == wanted]
    after = "" if tie.transform == "identity" else f", after {described(tie.transform)} {result.shape},"
    advice = "" if result.dtype == dtype else f"; cast one of them, or add Cast({str(dtype)!r}) to the transform"
    if fitting and result.shape != wanted:
        advice = f"; transform={fitting[0]!r} fits the shapes"
    return f"{tie}: shapes or dtypes differ: {_describe(tie.source, source)}{after} and {_describe(tie.target, target)}{advice}"
