"""Ties between the layers of a stack: an owner vector, which is data.

A stacked model holds its layers' weights as arrays `[stack_size, ...]` and is applied under an int32 vector of places in the
stack, one for each layer. Full storage keeps a place for every layer, so that one executable serves every pattern, and the
places are the owner vector itself; `owner = arange(layers)` is the untied model. Compact storage keeps the distinct layers
alone. By which rules ties change is told in `layer_ties`.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from tiejax.tying.errors import TieError

Owner = Int32[np.ndarray, "layers"]
Storage = Literal["full", "compact"]


def independent(layers: int) -> Owner:
    """Return the owner vector of an untied stack, 0, 1, ..., layers - 1."""
    return np.arange(layers, dtype=np.int32)


def check_owner(owner: Sequence[int] | np.ndarray) -> Owner:
    """Return `owner` as an int32 vector in which every layer's owner is an earlier layer, or itself, that owns itself.

    The explicit dtype matters: a weakly typed vector would compile a second executable.
    Raises TieError, naming the layer, if it is empty, not integral, names a later layer or one that is itself a copy.
    """
    vector = np.asarray(owner)
    if vector.ndim != 1 or vector.size == 0 or not np.issubdtype(vector.dtype, np.integer):
        raise TieError(f"owner: a vector of one layer index per layer is needed, got {owner!r}")
    for layer, source in enumerate(vector):
        if not 0 <= source <= layer:
            raise TieError(f"owner: layer {layer} cannot copy layer {source}: only 0 to {layer} come before it or are it")
        if vector[source] != source:
            raise TieError(
                f"owner: layer {layer} copies layer {source}, which is itself a copy of {vector[source]}; name that one"
            )
    return vector.astype(np.int32)


def first_uses(owner: Owner) -> Bool[np.ndarray, "layers"]:
    """Say of each layer whether it is the first that uses its weights."""
    return np.isin(np.arange(len(owner)), np.unique(owner, return_index=True)[1])


def sends_gradient(owner: Owner, gradient: Literal["all", "owner"]) -> Bool[np.ndarray, "layers"]:
    """Say of each layer whether its use sends gradient to the weights it reads: all do, or the first use alone."""
    if gradient == "all":
        return np.ones(len(owner), dtype=bool)
    return first_uses(owner)


def choose_owner(owner: Owner, layer: int, choice: int) -> Owner:
    """Return the owner vector after `layer` has become a copy of the earlier layer `choice` (or independent: itself).

    Ties resolve: the copy of a copy has the owner of that one, and the copies of a layer that becomes a copy follow it, so
    that every owner still owns itself. Raises TieError if `choice` is a later layer.
    """
    if not 0 <= choice <= layer < len(owner):
        raise TieError(f"owner: layer {layer} of {len(owner)} cannot copy layer {choice}")
    after = owner.copy()
    if choice == layer:
        after[layer] = layer
    else:
        # Copies of this layer, if it has any, have no weights left to share but those that it takes.
        after[(owner == layer) | (np.arange(len(owner)) == layer)] = owner[choice]
    return after


def places(owner: Owner, storage: Storage) -> Int32[np.ndarray, "layers"]:
    """Return the place in the stack that each layer reads."""
    if storage == "full":
        return owner.astype(np.int32)
    return np.unique(owner, return_inverse=True)[1].astype(np.int32)


def stack_size(owner: Owner, storage: Storage) -> int:
    """Return the number of places in the stack: of all layers (full storage), or of those that own weights (compact)."""
    return len(owner) if storage == "full" else len(np.unique(owner))


def written_out(owner: Owner) -> Int32[np.ndarray, "layers"]:
    """Return, for every layer, the place in compact storage of the weights it owns or, if it owns none, of those that it reads.

    A stack taken so has a place for every layer, and its places `unique(owner)` are the compact stack again. (By the published
    rule a layer may own weights that only others read.)
    """
    place = places(owner, "compact")
    place[np.unique(owner)] = np.arange(len(np.unique(owner)))
    return place


class Move(NamedTuple):
    """How a stack changes with its owners: new place p takes what stood at `source[p]`.

    separated: those of layers that were copies and are independent now.
    """

    source: Int32[np.ndarray, "stack_size"]
    separated: Bool[np.ndarray, "stack_size"]


def move(before: Owner, after: Owner, storage: Storage) -> Move:
    """Return how weights move between the places of two owner vectors; a layer that becomes independent takes what it read."""
    place_of = dict(zip(before.tolist(), places(before, storage).tolist(), strict=True))
    kept = np.arange(len(before)) if storage == "full" else np.unique(after)  # the layer whose weights each new place holds
    separated = np.isin(kept, after) & ~np.isin(kept, before)
    source = [
        place_of[int(before[layer])] if is_new else place_of.get(layer, layer)
        for layer, is_new in zip(kept.tolist(), separated, strict=True)
    ]
    return Move(np.array(source, np.int32), separated)


class LayerTies(NamedTuple):
    """Which weights each layer reads, whether it trains them, and what an agent is told of it.

    owner: the layer whose weights are read. trains: false for a layer that has not been chosen for since it started frozen, or,
    by the published rule, for a copy. observation: the state s of the agent, s_i the layer that i copies.
    """

    owner: Owner
    trains: Bool[np.ndarray, "layers"]
    observation: Owner


class Wiring(NamedTuple):
    """What a training step is told of the ties, as data.

    reads: place of each layer's weights in the stack. sends: whether the layer sends them gradient. trained: how many updates
    the weights at each place get in a step; 0 where no layer sends gradient.
    """

    reads: Int32[np.ndarray, "layers"]
    sends: Bool[np.ndarray, "layers"]
    trained: Int32[np.ndarray, "stack_size"]
