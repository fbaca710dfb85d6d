"""Tensors other than the two tables that are one if the tables are one, such as the tables of an encoder and a decoder."""

from collections.abc import Sequence
from typing import NamedTuple

from tiejax.checkpoints.hub.architectures import Architecture
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.locate import stored_under
from tiejax.checkpoints.rewrite.stored import equal


class Group(NamedTuple):
    """Stored tensors that are one in a tied model, the one that the library stores then first."""

    tensors: tuple[Tensor, ...]

    def odd(self) -> Tensor | None:
        """Return the first tensor that differs from the first of the group, None if all are equal; raises CheckpointError."""
        return next((tensor for tensor in self.tensors[1:] if not equal(self.tensors[0], tensor)), None)


def further_groups(checkpoint: Checkpoint, architecture: Architecture, table: Tensor) -> list[Group]:
    """Return the groups of further tensors of which a checkpoint stores two or more.

    table: the input table, which is the first of the group of its copies.
    """
    copies = [name for name in (*architecture.inner, *architecture.kept) if name not in architecture.output]
    further = [tensor for tensor in _stored(checkpoint, architecture, table, copies) if tensor.name != table.name]
    others = [_stored(checkpoint, architecture, table, names) for names in architecture.more]
    return [Group(tuple(tensors)) for tensors in ([table, *further], *others) if len(tensors) > 1]


def _stored(checkpoint: Checkpoint, architecture: Architecture, table: Tensor, names: Sequence[str]) -> list[Tensor]:
    spelled = dict.fromkeys(stored_under(checkpoint, architecture, table, name) for name in names)
    return [checkpoint.tensors[name] for name in spelled if name in checkpoint.tensors]
