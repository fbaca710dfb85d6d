"""Ties between the layers of a stack: an owner vector, which is data.

A stacked model holds its layers' weights as arrays `[height, ...]` and is applied under an int32 vector `owner[layers]`:
layer i computes with the weights at `owner[i]`. `owner = arange(layers)` is the untied model; any other pattern is the same
executable with another array.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int32

from tiejax.tying.tie import TieError

Owner = Int32[np.ndarray, "layers"]


def independent(layers: int) -> Owner:
    """Return the owner vector of an untied stack, 0, 1, ..., layers - 1."""
    return np.arange(layers, dtype=np.int32)


def check_owner(owner: Sequence[int] | np.ndarray) -> Owner:
    """Return `owner` as an int32 vector in which every layer's owner is an earlier layer, or itself, that owns itself.

    The explicit dtype matters: a weakly typed vector would compile a second executable.
    Raises TieError, naming the layer, if it is empty, not integral, names a later layer or one that is itself a copy.
    """
    given = np.asarray(owner)
    if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer):
        raise TieError(f"owner: a vector of one layer index per layer is needed, got {owner!r}")
    for layer, source in enumerate(given):
        if not 0 <= source <= layer:
            raise TieError(f"owner: layer {layer} cannot copy layer {source}: only 0 to {layer} come before it or are it")
        if given[source] != source:
            raise TieError(
                f"owner: layer {layer} copies layer {source}, which is itself a copy of {given[source]}; name that one"
            )
    return given.astype(np.int32)


def first_uses(owner: Owner) -> Bool[np.ndarray, "layers"]:
    """Say of each layer whether it is the first that uses its weights."""
    return np.isin(np.arange(len(owner)), np.unique(owner, return_index=True)[1])


def sends_gradient(owner: Owner, gradient: Literal["all", "owner"]) -> Bool[np.ndarray, "layers"]:
    """Say of each layer whether its use sends gradient to the weights it reads: all do, or the first use alone."""
    if gradient == "all":
        return np.ones(len(owner), dtype=bool)
    return first_uses(owner)
