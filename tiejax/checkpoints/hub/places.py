"""Assignment of a checkpoint's tensors to the arrays of tiejax's parameters, checked before any tensor is read."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tiejax.checkpoints.hub.checkpoint import CONFIG, Checkpoint, Tensor
from tiejax.checkpoints.hub.configurations import Convertible
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import predicts
from tiejax.checkpoints.hub.parameter_names import HEAD, OUTPUT_TABLE, POOLER, Slot, slots, view
from tiejax.checkpoints.hub.tables import DTYPES, FLOATS

# Constants that older versions of the transformers library stored among the weights.
BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids|attn\.(masked_)?bias)$")

Shapes = Mapping[str, tuple[int, ...]]


class Places(NamedTuple):
    """The assignment of a checkpoint's tensors to slots.

    prefix: prefix of the encoder's names. shapes: shapes of tiejax's arrays, by path. placed: tensor name -> the slots it
    fills, several if layers share it. copies: tensors stored under a second name of a slot. others: tensors without a slot.
    """

    prefix: str
    shapes: dict[str, tuple[int, ...]]
    placed: dict[str, list[Slot]]
    copies: dict[str, Slot]
    others: list[str]


def find_places(checkpoint: Checkpoint, family: Convertible, shapes: Shapes, width: int, numbers: Sequence[int]) -> Places:
    """Assign the tensors of a checkpoint to slots of tiejax's parameters.

    shapes: path -> shape of the parameters of the model that the configuration describes. width: the hidden size H.
    numbers: as for `slots`. Raises CheckpointError for a tensor that is missing, has another shape, or has no slot in the
    encoder of that model.
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
                f"{checkpoint.folder}: has no tensor {slot.names[0]}, which the {family.title} in its {CONFIG} needs"
            )
        for name in present:
            _check(checkpoint.tensors[name], slot, wanted)
        placed.setdefault(present[0], []).append(slot)
        copies |= dict.fromkeys(present[1:], slot)
    others = [name for name in checkpoint.tensors if name not in placed and name not in copies]
    _check_others(checkpoint, family, prefix, others)
    return Places(prefix, wanted, placed, copies, others)


def _prefix(checkpoint: Checkpoint, family: Convertible) -> str:
    """Return the prefix of the encoder's names: the family's, or "" in checkpoints of a class without a head."""
    table = f"{family.names.modules['embed']}.weight"
    for prefix in (family.names.prefix, ""):
        if prefix + table in checkpoint.tensors:
            return prefix
    raise CheckpointError(
        f"{checkpoint.folder}: has no tensor {family.names.prefix}{table}, the input table of a {family.title}"
    )


def _stored(checkpoint: Checkpoint, family: Convertible, prefix: str, shapes: Shapes, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that the file stores: the head only if it has one, and a pooler if it has one."""
    head = [path for path in shapes if path.startswith(HEAD)]
    names = [name for slot in slots(family.names, head, prefix, ()) for name in slot.names]
    # GPT-2's head consists of the output table, which a tied file stores as its input table.
    has_head = any(name in checkpoint.tensors for name in names) or (family.causal and predicts(checkpoint.config) is True)
    stored = {path: shape for path, shape in shapes.items() if has_head or path not in head}
    pooler = family.names.modules.get(POOLER)
    if pooler is not None and f"{prefix}{pooler}.weight" in checkpoint.tensors:
        stored |= {f"{POOLER}/kernel": (width, width), f"{POOLER}/bias": (width,)}
    return stored


def _check(tensor: Tensor, slot: Slot, shapes: Shapes) -> None:
    """Raise CheckpointError unless a tensor has a float dtype and the shape of its slot."""
    if tensor.dtype not in DTYPES:
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is stored as {tensor.dtype}; expected one of {FLOATS}, not quantised"
        )
    # A broadcast scalar has the shape without taking memory.
    shape = view(np.broadcast_to(np.float32(0), shapes[slot.path]), slot).shape
    if tensor.shape != shape:
        raise CheckpointError(f"{tensor.file}: {tensor.name} is {list(tensor.shape)}, but {CONFIG} implies {list(shape)}")


def _check_others(checkpoint: Checkpoint, family: Convertible, prefix: str, others: Sequence[str]) -> None:
    """Raise CheckpointError for a tensor of the encoder without a slot: tiejax's model would compute something else."""
    names = family.names
    encoder = tuple(prefix + part.split(".")[0] + "." for part in (*names.modules.values(), names.layers))
    for name in others:
        if name.startswith(encoder) and not BUFFERS.search(name):
            file = checkpoint.tensors[name].file
            raise CheckpointError(f"{file}: {name} is not part of the {family.title} that {CONFIG} describes")
