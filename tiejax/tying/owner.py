"""Owner vectors: ties between the layers of a stack, as data.

A stacked model stores its layers' weights as arrays `[stack_size, ...]`. A row of the stack is a slot. The model is applied
with an int32 vector that names the slot each layer reads.

An owner vector names, for each layer, the layer whose weights it reads; `arange(layers)` is the untied model. In full storage
there is a slot for every layer and the vector of slots is the owner vector, so one executable serves every pattern of ties. In
compact storage there are slots for the distinct layers only. The rules by which ties change are in `layer_ties`.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiejax.tying.errors import TieError

Owner = NDArray[np.int32]  # [layers]
Slots = NDArray[np.int32]  # [layers]
Flags = NDArray[np.bool_]
Storage = Literal["full", "compact"]


def independent(layers: int) -> Owner:
    """Return the owner vector of an untied stack, 0, 1, ..., layers - 1."""
    return np.arange(layers, dtype=np.int32)


def check_owner(owner: Sequence[int] | np.ndarray) -> Owner:
    """Check an owner vector and convert it to int32.

    Every layer must read an earlier layer or itself, and every layer that is read must own itself. (The dtype is explicit
    because a weakly typed vector would compile a second executable.)

    Args:
        owner: For each layer, the index of the layer whose weights it reads.

    Returns:
        The owner vector, int32 `[layers]`.

    Raises:
        TieError: The vector is empty or not integral, or a layer reads a later layer or one that is itself a copy.
    """
    vector = np.asarray(owner)
    if vector.ndim != 1 or vector.size == 0 or not np.issubdtype(vector.dtype, np.integer):
        raise TieError(f"owner: expected a vector of one layer index per layer, got {repr(owner)[:80]}")
    for layer, source in enumerate(vector):
        if not 0 <= source <= layer:
            raise TieError(f"owner: layer {layer} cannot copy layer {source}; expected an index from 0 to {layer}")
        if vector[source] != source:
            raise TieError(
                f"owner: layer {layer} copies layer {source}, which is itself a copy of layer {vector[source]}; "
                f"use {vector[source]}"
            )
    return vector.astype(np.int32)


def sends_gradient(owner: Owner, gradient: Literal["all", "owner"]) -> Flags:
    """Return, for each layer, whether its use trains the weights it reads, `[layers]`: all uses do, or only the first."""
    if gradient == "all":
        return np.ones(len(owner), dtype=bool)
    return np.isin(np.arange(len(owner)), np.unique(owner, return_index=True)[1])


def choose_owner(owner: Owner, layer: int, choice: int) -> Owner:
    """Make a layer a copy of an earlier one, or independent, and resolve the resulting ties.

    A copy of a copy reads the owner of that copy, and the copies of a layer that becomes a copy follow it; so every owner still
    owns itself.

    Args:
        owner: The current owner vector, int32 `[layers]`.
        layer: The layer to change.
        choice: The earlier layer to copy, or `layer` itself to make it independent.

    Returns:
        The new owner vector, int32 `[layers]`.

    Raises:
        TieError: There is no such layer, or `choice` is not between 0 and `layer`.
    """
    if not 0 <= choice <= layer < len(owner):
        raise TieError(f"owner: layer {layer} of {len(owner)} cannot copy layer {choice}; expected an index from 0 to {layer}")
    owner = np.asarray(owner)
    after = owner.copy()
    if choice == layer:
        after[layer] = layer
    else:
        # Copies of this layer can no longer read its weights, so they read the weights that it now reads.
        after[(owner == layer) | (np.arange(len(owner)) == layer)] = owner[choice]
    return after


def slots(owner: Owner, storage: Storage) -> Slots:
    """Return the slot of the stack that each layer reads.

    Args:
        owner: The owner vector, int32 `[layers]`.
        storage: `full`, a slot for every layer, or `compact`, a slot for every distinct layer.

    Returns:
        Indices into the stack, int32 `[layers]`: the `owner` argument of `tiejax.models.Transformer`.
    """
    _check_storage(owner, storage)
    if storage == "full":
        return np.asarray(owner).astype(np.int32)
    return np.unique(owner, return_inverse=True)[1].astype(np.int32)


def stack_size(owner: Owner, storage: Storage) -> int:
    """Return the number of slots: one per layer in full storage, one per distinct layer in compact storage."""
    _check_storage(owner, storage)
    return len(owner) if storage == "full" else len(np.unique(owner))


def _check_storage(owner: Owner, storage: Storage) -> None:
    """Raise TieError for an unknown storage, or a vector of which a layer reads weights of a later one."""
    if storage not in ("full", "compact"):
        raise TieError(f"storage: expected full or compact, got {storage!r}")
    reads = np.asarray(owner).tolist()
    if np.asarray(owner).dtype.kind not in "iu" or any(not 0 <= read <= layer for layer, read in enumerate(reads)):
        raise TieError(f"owner: expected each layer to read its own weights or those of an earlier one, got {reads}")


def expansion_slots(owner: Owner) -> Slots:
    """Return the slots to take from a compact stack to expand it to full storage, `[layers]`.

    Each layer takes the weights that it owns or, if it owns none, those that it reads; the rows `unique(owner)` of the expanded
    stack are the compact stack again. (Under the published rule a layer may own weights that only other layers read.)
    """
    slot = slots(owner, "compact")
    slot[np.unique(owner)] = np.arange(len(np.unique(owner)))
    return slot


class Move(NamedTuple):
    """How the slots of a stack change when the owner vector changes.

    source: for each new slot, the old slot whose weights it takes, int32 `[stack_size]`. separated: whether the layer of each
    new slot was a copy and has become independent, boolean `[stack_size]`.
    """

    source: Slots
    separated: Flags


def move(before: Owner, after: Owner, storage: Storage) -> Move:
    """Return how weights move between slots when the owner vector changes.

    A layer that becomes independent takes the weights that it read before.

    Args:
        before: The old owner vector, int32 `[layers]`.
        after: The new owner vector, int32 `[layers]`.
        storage: The storage of the stack, `full` or `compact` (see `slots`).

    Returns:
        A `Move`: new slot p takes the weights of old slot `source[p]`.

    Raises:
        TieError: They are no owner vectors, or of different lengths.
    """
    before, after = np.asarray(before), np.asarray(after)
    if len(before) != len(after):
        raise TieError(f"owner: expected vectors of one length, got {len(before)} and {len(after)} layers")
    old_slot = dict(zip(before.tolist(), slots(before, storage).tolist(), strict=True))
    owners = np.arange(len(before)) if storage == "full" else np.unique(after)  # the layer whose weights each new slot holds
    separated = np.isin(owners, after) & ~np.isin(owners, before)
    source = [
        old_slot[int(before[layer])] if is_new else old_slot.get(layer, layer)
        for layer, is_new in zip(owners.tolist(), separated, strict=True)
    ]
    return Move(np.array(source, np.int32), separated)


class LayerTies(NamedTuple):
    """Layer ties that an agent changes: whose weights each layer reads, whether it trains them, and what the agent observes.

    owner: the layer whose weights each layer reads. trains: whether each layer trains the weights it reads; false for a layer
    that started frozen, until the agent first chooses for it, and, under the published rule, for a copy. observation: the
    agent's state s, in which s_i is the layer that layer i is reported to copy. All are `[layers]`.
    """

    owner: Owner
    trains: Flags
    observation: Owner


class Wiring(NamedTuple):
    """Layer ties as the arrays that a training step takes.

    Attributes:
        reads: The slot that each layer reads, int32 `[layers]`.
        sends: Whether each layer sends gradient to that slot, boolean `[layers]`.
        trained: How many updates each slot receives in a step, int32 `[stack_size]`; 0 if no layer sends gradient to it.
    """

    reads: Slots
    sends: Flags
    trained: NDArray[np.int32]
