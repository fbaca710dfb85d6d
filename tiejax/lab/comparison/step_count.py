"""The number of steps of a comparison, given or as many as a time allows at a measured rate, and the size of its blocks."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from tiejax.lab.comparison.arms import Arm
from tiejax.lab.comparison.training import Arrays, Trainer
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.stages import Stages
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.settings.command_line import BadInput
from tiejax.training.loop import Training

Parts = Sequence[int | list[int]]
PLAN, PROBED_STEPS, PROBED_SEED = "plan", 60, 2000  # the stage that fixes the number of steps and the size of blocks
STAGE_S, SLACK = 12.0, 1.05  # seconds of a stage besides training: compilation, final losses; records and checkpoints


def block_size(parts: Parts, devices_each: int = 1) -> int:
    """Return the number of models that train together: one on each CPU core; on an accelerator, all seeds of the first part.

    devices_each: number of devices that train a model.
    """
    devices: int = max(1, jax.device_count() // devices_each)
    if jax.default_backend() == "cpu":
        return devices
    return max(devices, len(seed_list(parts[0])))


class StepCount(NamedTuple):
    """What decides the number of steps.

    Attributes:
        steps: the number of steps; None if `hours` decide.
        hours: the time that the run may take.
        unit: the number of steps is a multiple of it.
        most: the largest number of steps.
        costs: stage -> cost in runs of one block, of the stages that are planned when the run starts.
        more: cost of the stages that may be added.
        probe: -> seconds of a step of one block.
    """

    steps: int | None
    hours: float | None
    unit: int
    most: int
    costs: Mapping[str, float]
    more: float
    probe: Callable[[], float]

    def plan(self, block: int) -> Arrays:
        """Return the number of steps, the size of blocks, and the seconds of a step, NaN if they were not measured."""
        steps, seconds = self.steps, math.nan
        if steps is None:
            assert self.hours is not None
            seconds = self.probe()
            whole = sum(self.costs.values()) + self.more
            allowed = max(0.0, self.hours * 3600 - STAGE_S * len(self.costs)) / (whole * seconds * SLACK)
            steps = max(self.unit, math.floor(min(self.most, allowed) / self.unit) * self.unit)
        return {"steps": np.array(steps), "block": np.array(block), "seconds_per_step": np.array(seconds)}


def steps_of(count: StepCount, stages: Stages, block: int, console: Console) -> int:
    """Return the number of steps, which is fixed when the run starts; raises BadInput if blocks now have another size."""
    found = stages.once(PLAN, "number of steps", functools.partial(count.plan, block))
    if int(found["block"]) != block:
        raise BadInput(
            f"--resume: the run was started with {int(found['block'])} models at a time, which are {block} on "
            "the devices of this machine; set JAX_NUM_CPU_DEVICES, or start another run"
        )
    steps = int(found["steps"])
    if count.steps is None:
        console.say(f"{steps:,} steps: {float(found['seconds_per_step']):.3f} s a step of {counted(block, 'model')}")
    return steps


def seconds_of_step(trainer: Trainer, arm: Arm, block: int) -> float:
    """Return the seconds of a step of one block of an arm's models."""
    training = Training(trainer.ensemble(arm, 0, PROBED_STEPS), list(range(PROBED_SEED, PROBED_SEED + block)))
    training.compile()
    chunks = list(training.chunks(chunk_s=1.0))
    first, last = chunks[0], chunks[-1]  # the first step is slower than others
    return (last.train_s - first.train_s) / max(1, last.steps_here - first.steps_here)
