"""Tensors other than the two tables that are one if the tables are one, such as the tables of an encoder and a decoder."""

from collections.abc import Sequence
from typing import NamedTuple

from tiejax.checkpoints.hub.architectures import Architecture
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError
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
    further = [tensor for tensor in stored_of(checkpoint, architecture, table, copies) if tensor.name != table.name]
    others = [stored_of(checkpoint, architecture, table, names) for names in architecture.groups]
    return [Group(tuple(tensors)) for tensors in ([table, *further], *others) if len(tensors) > 1]


def further_copies(checkpoint: Checkpoint, architecture: Architecture, table: Tensor, output: Tensor | None) -> tuple[str, ...]:
    """Return the names of further copies of one tensor, of which the library stores only the first if the tables are tied.

    table: the input table. output: the output table, whose bias is no such copy. Raises CheckpointError if tensors differ that
    the flag makes one.
    """
    bias = output.name.removesuffix("weight") + "bias" if output else None
    copies: list[str] = []
    for group in further_groups(checkpoint, architecture, table):
        names = [tensor.name for tensor in group.tensors]
        if bias in names:
            continue
        if odd := group.odd():
            raise CheckpointError(
                f"{checkpoint.folder}: cannot be tied: {odd.name} differs from {names[0]}, and a flag that says tied "
                "makes them one tensor"
            )
        copies += names[1:]
    return tuple(copies)


def stored_of(checkpoint: Checkpoint, architecture: Architecture, table: Tensor, names: Sequence[str]) -> list[Tensor]:
    """Return the tensors with these names that a checkpoint stores, with the prefix of the given table."""
    spelled = dict.fromkeys(stored_under(checkpoint, architecture, table, name) for name in names)
    return [checkpoint.tensors[name] for name in spelled if name in checkpoint.tensors]
