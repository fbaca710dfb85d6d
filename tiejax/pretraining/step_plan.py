"""Steps, rows and slots of a run on packed or padded rows, derived from the lengths of the sentences."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from tiejax.text.masking import slots_for
from tiejax.text.packing import row_averages


class StepPlan(NamedTuple):
    """The sizes of a run that depend on its text.

    rows: per step, over all devices of a member. slots: for the masked tokens of one device. mesh: number of devices that train
    one member together. padding: share of padding in the rows. tokens: average tokens per step, without padding. epoch: steps
    per epoch if each epoch begins with a new step; None if a step can span two epochs.
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
        """Rows per step on one device; on the last device some may be empty."""
        return -(-self.rows // self.mesh)


def devices_of_member(members: int, devices: int, local: int, mesh: int | None = None, platform: str = "gpu") -> int:
    """Return the number of devices that train one member: `mesh`, by default the smallest number that keeps all devices busy.

    devices: number of devices of all processes. local: per process, which has whole members, or an equal share of one. CPU
    devices of one process share a member only if `mesh` says so, since collectives between them can deadlock. Raises
    ValueError, beginning with `mesh`, if `mesh` does not allow this.
    """
    if mesh is None and platform == "cpu" and local > 1:
        return 1
    fitting = [size for size in range(1, devices + 1) if devices % size == 0 and (local % size == 0 or size % local == 0)]
    if mesh is None:
        return min(size for size in fitting if members % (devices // size) == 0)
    if mesh not in fitting:
        raise ValueError(
            f"mesh: {mesh} devices per member do not fit {devices} devices; expected one of {', '.join(map(str, fitting))}"
        )
    return mesh


def plan_steps(
    lengths: Int[np.ndarray, " sentences"],
    rows: int,
    row_length: int,
    packed: bool,
    mesh: int,
    steps: int | None = None,
    epochs: int | float | None = None,
    epochs_apart: bool = False,
) -> StepPlan:
    """Plan a run with `rows` rows per step on sentences of these lengths, for `steps` steps or else `epochs` epochs.

    epochs_apart: begin each epoch with a new step, so that its last step can have fewer sentences (unpacked rows only).
    """
    row, epoch = row_averages(lengths, row_length, packed), None
    if epochs_apart:
        epoch = -(-len(lengths) // rows)
        row = row._replace(tokens=float(lengths.sum()) / (epoch * rows))  # including the empty rows
    if steps is None:
        assert epochs is not None
        steps = max(1, round(epochs * float(lengths.sum()) / (rows * row.tokens)))
    device_rows = -(-rows // mesh)
    slots = slots_for(device_rows * row.maskable, device_rows * row.variance, device_rows * row_length)
    return StepPlan(steps, rows, slots, mesh, 1 - row.tokens / row_length, rows * row.tokens, epoch)
