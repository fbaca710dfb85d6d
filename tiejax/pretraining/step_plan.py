"""The plan of the steps on packed or padded rows: what the lengths of the sentences decide of a run."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from tiejax.text.masking import slots_for
from tiejax.text.packing import filling, rows_for

MOST_PLACES = 2**24  # tokens and padding of one step


class StepPlan(NamedTuple):
    """What the text decides of a run.

    steps: of training. mesh: devices that train one member together. rows: of one step, over all these devices. slots: for the
    masked tokens of one device's part of the rows. padding: its share of the rows. tokens: of one step on average, no padding.
    epoch: steps of an epoch, where each begins with a step of its own; None where a step may end one and begin the next.
    """

    steps: int
    rows: int
    slots: int
    mesh: int
    padding: float
    tokens: float
    epoch: int | None = None

    @property
    def rows_of_device(self) -> int:
        """The rows of one step on one device; the last device's may end with empty ones."""
        return -(-self.rows // self.mesh)


def devices_of_member(members: int, devices: int, local: int, mesh: int | None = None) -> int:
    """Return how many devices train one member: `mesh`, or else the fewest that leave none without work.

    members: how many are trained side by side. devices: of all processes, `local` of them to a process, which holds whole
    members or an equal part of one. Raises ValueError that begins with `mesh`.
    """
    fitting = [size for size in range(1, devices + 1) if devices % size == 0 and (local % size == 0 or size % local == 0)]
    if mesh is None:
        return min(size for size in fitting if members % (devices // size) == 0)
    if mesh not in fitting:
        raise ValueError(f"mesh: {mesh} devices a member do not fit {devices} devices; give {', '.join(map(str, fitting))}")
    return mesh


def plan_steps(
    lengths: Int[np.ndarray, "sentences"],
    batch_size: int,
    row_length: int,
    packed: bool,
    mesh: int,
    steps: int | None = None,
    epochs: int | float | None = None,
    epochs_apart: bool = False,
) -> StepPlan:
    """Return the plan for sentences of these lengths, trained on for so many steps, or else epochs.

    batch_size: sentences of one step, on average where rows are packed, since a step has a fixed number of rows.
    epochs_apart: each epoch begins with a step of its own, and its last step may have fewer sentences (rows not packed).
    Raises ValueError that begins with `batch_size`.
    """
    rows = rows_for(lengths, batch_size, row_length) if packed else batch_size
    if rows * row_length > MOST_PLACES:
        raise ValueError(f"batch_size: {batch_size} sentences make {rows * row_length:,} places, too many")
    return plan_rows(lengths, rows, row_length, packed, mesh, steps, epochs, epochs_apart)


def plan_rows(
    lengths: Int[np.ndarray, "sentences"],
    rows: int,
    row_length: int,
    packed: bool,
    mesh: int,
    steps: int | None = None,
    epochs: int | float | None = None,
    epochs_apart: bool = False,
) -> StepPlan:
    """Return the plan for so many rows a step; other arguments as of `plan_steps`."""
    row, epoch = filling(lengths, row_length, packed), None
    if epochs_apart:
        epoch = -(-len(lengths) // rows)
        row = row._replace(tokens=float(lengths.sum()) / (epoch * rows))  # the empty rows among them
    if steps is None:
        assert epochs is not None
        steps = max(1, round(epochs * float(lengths.sum()) / (rows * row.tokens)))
    of_device = -(-rows // mesh)
    slots = slots_for(of_device * row.maskable, of_device * row.variance, of_device * row_length)
    return StepPlan(steps, rows, slots, mesh, 1 - row.tokens / row_length, rows * row.tokens, epoch)
