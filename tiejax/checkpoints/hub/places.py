"""Which tensor of a checkpoint goes where in our parameters, checked before any of them is read."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tiejax.checkpoints.hub.checkpoint import CONFIG, Checkpoint, Tensor
from tiejax.checkpoints.hub.configurations import Family
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import predicts
from tiejax.checkpoints.hub.parameter_names import HEAD, OUTPUT_TABLE, POOLER, Slot, slots, view
from tiejax.checkpoints.hub.tables import DTYPES

# Constants that older versions of the library stored among the weights.
BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids|attn\.(masked_)?bias)$")

Shapes = Mapping[str, tuple[int, ...]]


class Places(NamedTuple):
    """Where the tensors of a checkpoint go.

    prefix: of the encoder's names. shapes: of our arrays, by path. placed: the slots that a tensor fills, by its name; several
    where layers share it. copies: tensors under a second name of a slot. others: tensors that have no place in ours.
    """

    prefix: str
    shapes: dict[str, tuple[int, ...]]
    placed: dict[str, list[Slot]]
    copies: dict[str, Slot]
    others: list[str]


def find_places(checkpoint: Checkpoint, family: Family, shapes: Shapes, width: int, numbers: Sequence[int]) -> Places:
    """Return where the tensors of a checkpoint go.

    shapes: of the model that its configuration describes, by path. width: H. numbers: as of `slots`.
    Raises CheckpointError for a tensor that is missing, or has another shape, or has no place in such a model.
    """
    prefix = _prefix(checkpoint, family)
    wanted = _stored(checkpoint, family, prefix, shapes, width)
    placed: dict[str, list[Slot]] = {}
    copies: dict[str, Slot] = {}
    for slot in slots(family.names, list(wanted), prefix, numbers):
        present = [name for name in slot.names if name in checkpoint.tensors]
        if not present and slot.path == OUTPUT_TABLE and family.names.ties:
            continue
        if not present:
            raise CheckpointError(
                f"{checkpoint.folder}: has no tensor {slot.names[0]}, which a {family.title} of its {CONFIG} has"
            )
        for name in present:
            _check(checkpoint.tensors[name], slot, wanted)
        placed.setdefault(present[0], []).append(slot)
        copies |= dict.fromkeys(present[1:], slot)
    others = [name for name in checkpoint.tensors if name not in placed and name not in copies]
    _check_others(checkpoint, family, prefix, others)
    return Places(prefix, wanted, placed, copies, others)


def _prefix(checkpoint: Checkpoint, family: Family) -> str:
    """Return what stands before the names of the encoder: the family's prefix, or nothing in its bare class."""
    table = f"{family.names.modules['embed']}.weight"
    for prefix in (family.names.prefix, ""):
        if prefix + table in checkpoint.tensors:
            return prefix
    raise CheckpointError(
        f"{checkpoint.folder}: has no tensor {family.names.prefix}{table}, the input table of a {family.title}"
    )


def _stored(checkpoint: Checkpoint, family: Family, prefix: str, shapes: Shapes, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of those parts of our parameters that the file has: without a head, with a pooler."""
    head = [path for path in shapes if path.startswith(HEAD)]
    names = [name for slot in slots(family.names, head, prefix, ()) for name in slot.names]
    # GPT-2's head is a table alone, which a tied file has as its input table.
    has_head = any(name in checkpoint.tensors for name in names) or (family.causal and predicts(checkpoint.config))
    stored = {path: shape for path, shape in shapes.items() if has_head or path not in head}
    pooler = family.names.modules.get(POOLER)
    if pooler is not None and f"{prefix}{pooler}.weight" in checkpoint.tensors:
        stored |= {f"{POOLER}/kernel": (width, width), f"{POOLER}/bias": (width,)}
    return stored


def _check(tensor: Tensor, slot: Slot, shapes: Shapes) -> None:
    """Raise CheckpointError unless a tensor is of a float dtype and of the shape that its slot has."""
    if tensor.dtype not in DTYPES:
        kinds = ", ".join(DTYPES.values())
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is stored as {tensor.dtype}; weights are read as {kinds}, not quantised"
        )
    # No memory: only its shape is looked at.
    shape = view(np.broadcast_to(np.float32(0), shapes[slot.path]), slot).shape
    if tensor.shape != shape:
        raise CheckpointError(f"{tensor.file}: {tensor.name} is {list(tensor.shape)}; by {CONFIG} it must be {list(shape)}")


def _check_others(checkpoint: Checkpoint, family: Family, prefix: str, others: Sequence[str]) -> None:
    """Raise CheckpointError for a tensor of the encoder that our model has no place for: it would compute something else."""
    names = family.names
    of_encoder = tuple(prefix + part.split(".")[0] + "." for part in (*names.modules.values(), names.layers))
    for name in others:
        if name.startswith(of_encoder) and not BUFFERS.search(name):
            file = checkpoint.tensors[name].file
            raise CheckpointError(f"{file}: {name} has no place in the {family.title} that {CONFIG} describes")
