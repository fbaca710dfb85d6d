"""The transforms that a tie may apply, declared in `TRANSFORMS`.

A transform permutes the entries of an array. Its inverse is therefore also its adjoint, which carries gradients of the target
back to the source. To add one, extend `TransformName` and `TRANSFORMS`: checks, error messages, chains of ties, `find_ties` and
the handling of optimizer states need no change.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

TransformName = Literal["identity", "transpose"]
Shape = tuple[int, ...]


class Transform(NamedTuple):
    """A permutation of an array's entries.

    Attributes:
        apply: Maps a jax or numpy array.
        shape: Maps the array's shape.
        inverse: The name of the inverse.
        axes: The smallest number of axes of an array that can be transformed.
    """

    apply: Callable[[Any], Any]
    shape: Callable[[Shape], Shape]
    inverse: TransformName
    axes: int


TRANSFORMS: dict[TransformName, Transform] = {
    "identity": Transform(lambda x: x, lambda shape: shape, inverse="identity", axes=0),
    "transpose": Transform(
        lambda x: x.swapaxes(-1, -2), lambda shape: (*shape[:-2], shape[-1], shape[-2]), inverse="transpose", axes=2
    ),
}


def compose(first: TransformName, second: TransformName) -> TransformName | None:
    """Return the transform that equals `first` followed by `second`, or None if `TRANSFORMS` has none."""
    if "identity" in (first, second):
        return second if first == "identity" else first
    return "identity" if second == TRANSFORMS[first].inverse else None
