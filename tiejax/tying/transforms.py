"""The transforms that a tie may apply to the source's array.

`Transpose`, `Cast`, `Scale`, `Reshape`, `Slice` and `Functions`. A tuple of transforms applies them in order. Each says
what ties need of it:

    apply(x)            the target's array, from the source's
    put(x, y)           the source's array `x`, with the entries that the target reads set so that `apply` returns `y`
    rearranges          True: entries move or are selected. False: every entry stays at its place, and its value may change.
                        None: unknown. Optimizer states follow the entries, but are neither scaled nor cast.
    partition(axes)     the target's partition over a mesh, one entry per axis, from the source's; None if there is none
"""

import dataclasses
import difflib
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError, short

TransformName = Literal["identity", "transpose"]
NAMES: tuple[TransformName, ...] = get_args(TransformName)
Shape = tuple[Any, ...]  # of integers, or of symbolic dimensions
Axes = tuple[Any, ...]  # the entries of a PartitionSpec


def swap_last_two(axes: Axes) -> Axes:
    """Return a shape, or the entries of a PartitionSpec, with the last two swapped, if there are two."""
    return (*axes[:-2], *axes[:-3:-1])


@dataclasses.dataclass(frozen=True)
class Transpose:
    """The transpose of the last two axes, written `"transpose"` in a tie. It is its own inverse and adjoint."""

    rearranges = True

    def apply(self, x: Any) -> Any:
        """Transpose an array of at least two axes; raises TieError for others."""
        if len(x.shape) < 2:
            raise TieError("transpose needs at least 2 axes")
        return x.swapaxes(-1, -2)

    def put(self, x: Any, y: Any) -> Any:
        return y.swapaxes(-1, -2)

    def partition(self, axes: Axes) -> Axes | None:
        return None if len(axes) < 2 else swap_last_two(axes)


@dataclasses.dataclass(frozen=True)
class Cast:
    """A cast: the target reads the source's values in another floating-point dtype.

    Attributes:
        dtype: The name of the target's dtype, or the dtype itself, such as `jnp.bfloat16`.

    Raises:
        TieError: `dtype` is not a floating-point dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> Cast(jnp.bfloat16)
        Cast(dtype='bfloat16')
    """

    dtype: str
    rearranges = False

    def __init__(self, dtype: Any) -> None:
        """Accept every form of a dtype, and keep its name."""
        own = getattr(dtype, "dtype", None)  # jax's scalar types, such as jnp.bfloat16, have a dtype
        try:
            found = np.dtype(own if isinstance(own, np.dtype) else object if dtype is None else dtype)
        except TypeError:
            found = np.dtype(object)
        if not jnp.issubdtype(found, jnp.inexact):
            raise TieError(f"Cast: expected a floating-point dtype, such as 'bfloat16', got {short(dtype)}")
        object.__setattr__(self, "dtype", found.name)

    def apply(self, x: Any) -> Any:
        return x.astype(self.dtype)

    def put(self, x: Any, y: Any) -> Any:
        return y.astype(x.dtype)

    def partition(self, axes: Axes) -> Axes:
        return axes


@dataclasses.dataclass(frozen=True)
class Scale:
    """A multiplication by a fixed number: the target is `factor` times the source.

    Optimizer states are not scaled: moments of a scaled leaf start as those of the source.

    Attributes:
        factor: A finite number other than 0.

    Raises:
        TieError: `factor` is not such a number.
    """

    factor: float
    rearranges = False

    def __post_init__(self) -> None:
        number = isinstance(self.factor, int | float | np.integer | np.floating) and not isinstance(self.factor, bool)
        if not number or not math.isfinite(self.factor) or self.factor == 0:
            raise TieError(f"Scale: expected a finite number other than 0, got {short(self.factor)}")
        object.__setattr__(self, "factor", float(self.factor))

    def apply(self, x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TieError(f"Scale: expected floating-point or complex numbers, got {x.dtype}")
        return (x * self._like(x)).astype(x.dtype)

    def put(self, x: Any, y: Any) -> Any:
        return (y / self._like(y)).astype(y.dtype)

    def _like(self, x: Any) -> Any:
        """Return the factor as jax rounds it, which numpy does not for dtypes such as bfloat16."""
        return self.factor if isinstance(x, jax.Array) else np.asarray(self.factor, x.dtype)

    def partition(self, axes: Axes) -> Axes:
        return axes


@dataclasses.dataclass(frozen=True)
class Reshape:
    """A reshape: the target holds the source's entries, in the same order, in another shape.

    Attributes:
        shape: The target's shape; one axis may be -1, to be inferred.

    Raises:
        TieError: `shape` is not a sequence of such integers.
    """

    shape: Shape | list[int]
    rearranges = True

    def __post_init__(self) -> None:
        try:
            shape = tuple(operator.index(length) for length in self.shape)
        except TypeError:
            shape = (-2,)
        if any(length < -1 for length in shape) or shape.count(-1) > 1:
            raise TieError(f"Reshape: expected a shape such as (2, 3), in which one axis may be -1, got {short(self.shape)}")
        object.__setattr__(self, "shape", shape)

    def apply(self, x: Any) -> Any:
        return x.reshape(self.shape)

    def put(self, x: Any, y: Any) -> Any:
        return y.reshape(x.shape)

    def partition(self, axes: Axes) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of one axis: one index, which drops the axis, or a range of them.

    With it a leaf can read one layer of a stack `[layers, ...]`, or one stack some layers of another. All other entries of the
    source belong to the source alone.

    Attributes:
        index: An index, or `(start, stop)` or `(start, stop, step)`, or the same as a slice. Negative numbers count from the
            end.
        axis: The axis.

    Raises:
        TieError: `index` or `axis` is not of this form, or `step` is not positive.

    Examples:
        >>> import numpy as np
        >>> Slice(1).apply(np.array([[1, 2], [3, 4]]))
        array([3, 4])
        >>> Slice((0, 2), axis=-1)
        Slice(index=(0, 2), axis=-1)
    """

    index: int | tuple[int, ...] | list[int] | slice
    axis: int = 0
    rearranges = True

    def __post_init__(self) -> None:
        """Convert the index to an int or a tuple, which can be hashed."""
        index: Any = self.index
        if isinstance(index, slice):
            step = () if index.step is None else (index.step,)
            index = (index.start or 0, index.stop, *step)
        try:
            numbers = [operator.index(number) for number in (index if isinstance(index, tuple | list) else [index])]
            axis = operator.index(self.axis)
        except TypeError:
            numbers = []
        if not numbers or (isinstance(index, tuple | list) and len(numbers) not in (2, 3)) or any(n < 1 for n in numbers[2:]):
            raise TieError(
                "Slice: expected an index, or (start, stop) or (start, stop, step) with a positive step, and an axis, got "
                f"{short(self.index)} and {short(self.axis)}"
            )
        object.__setattr__(self, "index", tuple(numbers) if isinstance(index, tuple | list) else numbers[0])
        object.__setattr__(self, "axis", axis)

    def _key(self, shape: Shape) -> tuple[Any, ...]:
        """Return the key that indexes an array of this shape; raises TieError if it reaches beyond the axis."""
        if not -len(shape) <= self.axis < len(shape):
            raise TieError(f"{self} needs an axis {self.axis}")
        axis = self.axis % len(shape)
        length = shape[axis]
        numbers: Any = self.index if isinstance(self.index, tuple) else (self.index,)
        start, *others = (number + length if number < 0 else number for number in numbers[:2])
        last = others[0] - 1 if others else start
        if not 0 <= start <= last < length:
            raise TieError(f"{self} reaches beyond the {length} entries of axis {self.axis}, or selects none")
        return (slice(None),) * axis + ((slice(start, *others, *numbers[2:]) if others else start),)

    def apply(self, x: Any) -> Any:
        return x[self._key(x.shape)]

    def put(self, x: Any, y: Any) -> Any:
        key = self._key(x.shape)
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):  # whose 64 bits jax would narrow
            x = x.copy()
            x[key] = y
            return x
        return jnp.asarray(x).at[key].set(jnp.asarray(y, x.dtype))

    def partition(self, axes: Axes) -> Axes:
        """Map the entries of a PartitionSpec: an index drops the entry of its axis."""
        axis = self.axis % len(axes) if self.axis < 0 else self.axis
        return axes if isinstance(self.index, tuple) else (*axes[:axis], *axes[axis + 1 :])


@dataclasses.dataclass(frozen=True)
class Functions:
    """A pair of functions of arrays, for a relation that no other transform has. It can be written as a tuple of the two.

    What uses them: `store`, `view`, `equal_leaves` and `assert_tied` call `forward` alone, which may be any differentiable
    function. `retie` calls `inverse`, unless it keeps the source's values. Ties that are switched (`symmetrise`) need the
    adjoint of `forward`, which jax derives, so that `forward` must be linear there. Such ties cannot be written to JSON.

    Attributes:
        forward: Maps the source's array to the target's.
        inverse: Maps an array of the target back to the source's.
        rearranges: Whether `forward` only moves entries (and `inverse` moves them back). Then `untie` and `retie` apply the two
            to the optimizer state as well. Otherwise the state cannot be carried over: `untie` needs a policy that replaces
            the target's state (`zero`, `zero-keep-count` or `split`), and `retie` needs `keep="source"`.

    Raises:
        TieError: `forward` or `inverse` is not a function.
    """

    forward: Callable[[Any], Any]
    inverse: Callable[[Any], Any]
    rearranges: bool | None = None

    def __post_init__(self) -> None:
        if not (callable(self.forward) and callable(self.inverse)):
            raise TieError(f"Functions: expected two functions, got {short((self.forward, self.inverse))}")
        object.__setattr__(self, "rearranges", True if self.rearranges else None)

    def apply(self, x: Any) -> Any:
        return self.forward(x)

    def put(self, x: Any, y: Any) -> Any:
        return self.inverse(y)

    def partition(self, axes: Axes) -> None:
        return None


Elementary = Transpose | Cast | Scale | Reshape | Slice | Functions
# What `Tie` accepts: a pair of functions becomes `Functions`, a list a tuple, a dictionary of fields the transform with these.
AnyTransform = TransformName | Elementary | Sequence[Any] | dict[str, Any]


def parts(transform: Any) -> tuple[Elementary, ...]:
    """Return the elementary transforms that a transform applies in order; none for the identity.

    Raises TieError if it is not a transform.
    """
    if isinstance(transform, str) and transform in NAMES:
        return () if transform == "identity" else (Transpose(),)
    if isinstance(transform, tuple | list):
        if len(transform) == 2 and all(callable(one) for one in transform):
            return (Functions(*transform),)
        return tuple(part for one in transform for part in parts(one))
    if isinstance(transform, Elementary):
        return (transform,)
    if isinstance(transform, dict):  # as dataclasses.asdict returns it
        for kind in (Cast, Scale, Reshape, Slice, Functions):
            if transform.keys() == kind.__dataclass_fields__.keys():
                return (kind(**transform),)
    names = list(map(repr, NAMES))
    near = ["transpose"] if transform in ("T", ".T") else difflib.get_close_matches(str(transform), NAMES, n=1)
    advice = (
        f"did you mean {near[0]!r}?"
        if near
        else "or Cast, Scale, Reshape, Slice (in tiejax.tying), a pair of functions (forward, inverse), or a list of transforms"
    )
    raise TieError(f"transform must be {', '.join(names[:-1])} or {names[-1]}, got {short(transform)}; {advice}")


def normalised(transform: Any) -> Any:
    """Return the form of a transform that `Tie` keeps: a name, one elementary transform, or a tuple of several."""
    found = parts(transform)
    if not found:
        return "identity"
    simple = tuple("transpose" if isinstance(part, Transpose) else part for part in found)
    return simple[0] if len(simple) == 1 else simple


def described(transform: Any) -> str:
    """Return a transform as it is written in messages."""
    return transform if isinstance(transform, str) else repr(transform)


def apply(transform: AnyTransform, x: Any) -> Any:
    """Map the source's array to the target's."""
    for part in parts(transform):
        x = part.apply(x if hasattr(x, "dtype") else jnp.asarray(x))
    return x


def put(transform: AnyTransform, x: Any, y: Any) -> Any:
    """Return the source's array `x` with the entries that the target reads set so that `apply` returns `y`."""
    found = parts(transform)
    if not found:
        return y
    first, rest = found[0], found[1:]
    return first.put(x, put(rest, first.apply(x), y) if rest else y)


def adjoint(transform: AnyTransform, gradient: Any, source: Any) -> Any:
    """Map a gradient of the target to the source's layout; `source` has the source's shape and dtype.

    Raises TieError if the transform is not linear.
    """
    found = parts(transform)
    if all(isinstance(part, Transpose) for part in found):
        for part in reversed(found):
            gradient = part.put(None, gradient)
        return gradient
    like = jax.ShapeDtypeStruct(jnp.shape(source), jnp.result_type(source))
    dtype = result(transform, like).dtype
    try:
        return jax.linear_transpose(lambda x: apply(transform, x), like)(jnp.asarray(gradient, dtype))[0]
    except Exception as error:
        raise TieError(
            f"{described(transform)} is not linear, so that gradients of a switched tie cannot be carried back through it "
            f"({first_line(error)}); store the array once (`store`, `view`)"
        ) from error


def result(transform: AnyTransform, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of the target; raises TieError if the transform does not fit those of the source."""
    for part in parts(transform):
        if isinstance(part, Transpose) and len(x.shape) >= 2:  # not traced, which would turn 64 bits of numpy into 32
            x = jax.ShapeDtypeStruct(swap_last_two(x.shape), x.dtype)
            continue
        try:
            found = jax.eval_shape(part.apply, jax.ShapeDtypeStruct(x.shape, x.dtype))
            x = jax.ShapeDtypeStruct(found.shape, found.dtype)
        except TieError:
            raise
        except Exception as error:  # a function of the user may raise anything
            raise TieError(f"{part} does not fit ({first_line(error)})") from error
    return x


def rearrangement(transform: AnyTransform) -> Any | None:
    """Return the part of a transform that moves or selects entries, without casts and scales; None if it is not known."""
    found = parts(transform)
    if any(part.rearranges is None for part in found):
        return None
    return normalised([part for part in found if part.rearranges])


def keeps_places(transform: AnyTransform) -> bool:
    """Whether every entry of the target is computed from the source's entry at the same place."""
    return all(part.rearranges is False for part in parts(transform))


def reads_part(transform: AnyTransform) -> bool:
    """Whether the target may read only some entries of the source."""
    return any(isinstance(part, Slice) for part in parts(transform))


def entries_read(transform: AnyTransform, shape: Shape) -> jax.Array:
    """Return which entries of a source of this shape the target reads, as far as slices decide it; boolean, of this shape."""
    found = parts(transform)
    last = max(place for place, part in enumerate(found) if isinstance(part, Slice))
    selecting = [part for part in found[: last + 1] if part.rearranges is not False]
    none = jnp.zeros(shape)
    read: jax.Array = put(selecting, none, jnp.ones_like(apply(selecting, none))) != 0
    return read


def compose(first: AnyTransform, second: AnyTransform) -> Any:
    """Return the transform that equals `first` followed by `second`."""
    return "identity" if first == second == "transpose" else normalised([first, second])


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
