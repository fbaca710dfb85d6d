"""A tie as data: the paths of two leaves, the transform between them, and the share of each use's gradient."""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from tiejax.tying import transforms
from tiejax.tying.errors import TieError, short
from tiejax.tying.leaves import is_label, is_partition
from tiejax.tying.transforms import AnyTransform, described, keeps_places, parts

PyTree = Any
Weight = float | jax.Array | np.ndarray


@jax.custom_jvp
def weighted(x: Any, weight: Weight) -> Any:
    """Return `x` bit for bit, with a derivative that is `weight` times that of `x`."""
    return x


@weighted.defjvp
def _weighted_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    x, weight = primals
    return x, scale(weight, tangents[0])


def scale(weight: Weight, gradient: Any) -> Any:
    """Return `weight` times a gradient, in the gradient's dtype."""
    return gradient if isinstance(weight, int | float) and weight == 1 else (weight * gradient).astype(gradient.dtype)


def broadcasts_to(weight: Weight, shape: tuple[Any, ...]) -> bool:
    """Whether a weight broadcasts to an array of this shape, which may be symbolic, without changing its shape."""
    own = np.shape(weight)
    return len(own) <= len(shape) and all(one in (1, size) for one, size in zip(reversed(own), reversed(shape), strict=False))


def hashable(weight: Weight) -> Any:
    """Return a value that represents a weight in comparisons and hashes; a traced weight equals only itself."""
    if isinstance(weight, jax.core.Tracer):
        return id(weight)
    array = np.asarray(weight)
    wide = array.astype(np.result_type(array.dtype if array.dtype.kind == "c" else np.float64, np.float64))
    return (array.shape, wide.tobytes()) if array.ndim else array.item()


@dataclasses.dataclass(frozen=True, eq=False)
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
            `Scale`, `Reshape` or `Slice`; a pair of functions `(forward, inverse)`, see `Functions`; or a list of transforms,
            applied in order.
        gradient: Which uses train the array: `"all"`, the sum over both; `"source"`, the source's use alone; or two weights
            `(a, b)`, numbers or arrays that broadcast to the source's shape: the array receives a times the gradient of the
            source's use plus b times the (transformed back) gradient of the target's use. `"all"` is (1, 1) and `"source"` is
            (1, 0). A list may stand for the pair, or for an array. Weights of a tie that is created inside a traced function
            may be traced; changing them causes no recompilation. Array weights are compared by value, traced ones by identity.

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
    gradient: Literal["all", "source"] | tuple[Weight, Weight] | list[Any] = "all"

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
        are_weights = len(weights) == 2 and all(map(_is_weight, weights))
        if not are_weights and (weights or self.gradient not in ("all", "source")):
            raise TieError(f"{self}: gradient must be 'all', 'source' or two finite weights (a, b), got {self.gradient!r}")
        if self.source.count("*") > self.target.count("*"):
            raise TieError(
                f"{self}: source and target must contain the same number of '*', "
                f"got {self.source.count('*')} and {self.target.count('*')}; only target may contain more"
            )

    def __str__(self) -> str:
        return f"tie {self.source} -> {self.target}"

    def _key(self) -> tuple[Any, ...]:
        gradient = self.gradient if isinstance(self.gradient, str) else tuple(map(hashable, self.gradient))
        return self.source, self.target, self.transform, gradient

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Tie) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def weights(self) -> tuple[Weight, Weight]:
        """Weights (a, b) of the gradients of the source's and the target's use."""
        if isinstance(self.gradient, tuple):
            return self.gradient
        return (1.0, 1.0) if self.gradient == "all" else (1.0, 0.0)


def _weight(weight: Any) -> Any:
    """Return a gradient weight, with a list converted to an array, and a copy of an array of numpy, which may change."""
    if not isinstance(weight, list | tuple):
        return weight.copy() if isinstance(weight, np.ndarray) else weight
    try:
        array = np.asarray(weight)
    except ValueError:  # lists of different lengths
        return weight
    return array if array.dtype.kind in "fiu" else weight


def _is_weight(weight: Any) -> bool:
    """Return whether a gradient weight is a finite number, or an array, whose values are finite if they are known."""
    if isinstance(weight, jax.Array) and not isinstance(weight, jax.core.Tracer) and jnp.issubdtype(weight.dtype, jnp.number):
        return bool(jnp.isfinite(weight).all())
    if isinstance(weight, np.ndarray) and weight.dtype.kind in "fiu":
        return bool(np.isfinite(weight).all())
    return math.isfinite(weight) if isinstance(weight, int | float) else hasattr(weight, "dtype")


def apply_transform(tie: Tie, x: Any) -> Any:
    """Map the source's array to the target's; or its shape and dtype, its partition over devices, or its label."""
    if is_label(x):
        return x
    if is_partition(x):
        return with_name(tie, partition_of_target, tie.transform, x)
    if isinstance(x, jax.ShapeDtypeStruct):
        if tie.transform == "identity":
            return x
        found = with_name(tie, transforms.result, tie.transform, x)
        sharding = None if x.sharding is None else with_name(tie, partition_of_target, tie.transform, x.sharding, len(x.shape))
        return jax.ShapeDtypeStruct(found.shape, found.dtype, sharding=sharding)
    return transforms.apply(tie.transform, x)


def adjoint_transform(tie: Tie, gradient: Any, source: Any) -> Any:
    """Map the gradient of the target's use to the source's layout; raises TieError if the transform is not linear."""
    return with_name(tie, transforms.adjoint, tie.transform, gradient, source)


def state_tie(tie: Tie) -> Tie | None:
    """Return the tie between the optimizer states of two leaves: entries move as in the parameters, and keep their values.

    None if a pair of functions does not say that it rearranges entries.
    """
    transform = transforms.rearrangement(tie.transform)
    return None if transform is None else dataclasses.replace(tie, transform=transform)


def with_name(tie: Tie, function: Any, *args: Any) -> Any:
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
    if any(isinstance(leaf, Tie) for leaf in [*(leaf for _, leaf in pairs), *(tree if isinstance(tree, tuple) else ())]):
        raise TieError("expected a tree of arrays, got ties in its place; the tree comes first, then the ties")
    leaves = {path_name(path): leaf for path, leaf in pairs}
    if len(leaves) != len(pairs):
        names = [path_name(path) for path, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TieError(f"two leaves have the path {twice}; rename one so that a tie can tell them apart")
    return leaves, treedef


def partition_of_target(transform: AnyTransform, partition: Any, number: int | None = None) -> Any:
    """Return the partition of the target's array, from the source's `PartitionSpec` or sharding, of the same type.

    number: of the axes of the array, if it is known. If not, a `PartitionSpec` must have an entry for every axis, unless it is
    empty (replicated). Raises TieError if the target's partition cannot be derived.
    """
    if keeps_places(transform) or isinstance(partition, SingleDeviceSharding):
        return partition
    if isinstance(partition, NamedSharding):
        spec = partition_of_target(transform, partition.spec, number)
        return NamedSharding(partition.mesh, spec, memory_kind=partition.memory_kind)
    if not isinstance(partition, PartitionSpec):
        raise TieError(f"{described(transform)} of a {type(partition).__name__} is not known; use a NamedSharding")
    axes: Any = (*partition, *(None,) * ((number or 0) - len(partition)))
    if all(axis is None for axis in axes):
        return PartitionSpec()
    for part in parts(transform):
        axes = part.partition(axes)
        if axes is None:
            raise TieError(
                f"{described(transform)} of {partition} is not known; write an entry for every axis, as in P('x', None), or "
                "give the target's partition yourself"
            )
    return PartitionSpec(*axes)
