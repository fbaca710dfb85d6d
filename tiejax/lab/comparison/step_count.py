"""The number of steps of a comparison, given or as many as a time allows at a measured rate, and the size of its blocks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tiejax.lab.comparison.arms import Arm
from tiejax.lab.comparison.segments import Segment
from tiejax.lab.comparison.training import Arrays, Trainer, Tuning, costs_of
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.training.loop import Training

PLAN, PROBED_STEPS, PROBED_SEED = "plan", 60, 2000  # the stage that fixes the number of steps and the size of blocks
STAGE_S, SLACK = 12.0, 1.05  # seconds of a stage besides training: compilation, final losses; records and checkpoints


def block_size(seeds: Sequence[int], devices_each: int = 1) -> int:
    """Return the number of models that train together: one on each CPU core; on an accelerator, all seeds of the first part.

    seeds: of the first part. devices_each: number of devices that train a model.
    """
    devices: int = max(1, jax.device_count() // devices_each)
    return devices if jax.default_backend() == "cpu" else max(devices, len(seeds))


def costs_of_run(tunings: Sequence[Tuning], blocks: Sequence[tuple[Sequence[int], Sequence[Segment]]]) -> dict[str, float]:
    """Return the cost of every stage that is planned, in runs of one block; blocks: seeds, and the segments that they train."""
    planned = {PLAN: 0.02}
    for tuning in tunings:
        planned |= tuning.costs()
    for seeds, parts in blocks:
        planned |= costs_of(parts, seeds)
    return planned


def steps_of(
    trainer: Trainer,
    settings: Any,
    arm: Arm,
    block: int,
    costs: Mapping[str, float],
    tunings: Sequence[Tuning],
    console: Console,
    unit: int = 1,
    more: float = 0.0,
    least: int = 1,
) -> int:
    """Return the number of steps, which is fixed when the run starts.

    Raises BadInput if the hours do not suffice for `unit` and `least` steps, or if blocks now have another size.

    settings: with `steps`, or `hours` that the run may take, at most `trainer.steps` and a multiple of `unit`. arm: of which a
    step is measured, `block` models at a time. costs: of the stages that are planned when the run starts. tunings: each may try
    another rate. more: cost of other stages that may be added.
    """
    whole = sum(costs.values()) + more + sum(-(-len(tuning.seeds) // block) for tuning in tunings)
    least = max(unit, least)

    def plan() -> Arrays:
        """Return the number of steps, 0 if too few, the size of blocks, and the seconds of a step, NaN if not measured."""
        steps, seconds = settings.steps, math.nan
        if steps is None:
            seconds = seconds_of_step(trainer, arm, block)
            allowed = (settings.hours * 3600 - STAGE_S * len(costs)) / (whole * seconds * SLACK)
            steps = max(unit, math.floor(min(trainer.steps, allowed) / unit) * unit) if allowed >= least else 0
        return {"steps": np.array(steps), "block": np.array(block), "seconds_per_step": np.array(seconds)}

    found = trainer.stages.once(PLAN, "number of steps", plan)
    if int(found["block"]) != block:
        raise BadInput(
            f"--resume: the run was started with {int(found['block'])} models at a time, which are {block} on "
            "the devices of this machine; set JAX_NUM_CPU_DEVICES, or start another run"
        )
    steps = int(found["steps"])
    if not steps:
        raise _too_short(settings.hours, costs, least, whole * float(found["seconds_per_step"]) * SLACK)
    if settings.steps is None:
        console.say(f"{counted(steps, 'step')}: {float(found['seconds_per_step']):.3f} s a step of {counted(block, 'model')}")
    return steps


def check_hours(hours: float | None, costs: Mapping[str, float]) -> None:
    """Raise BadInput if the hours of a run, if it has any, do not suffice for its stages before any step is measured."""
    if hours is not None and hours * 3600 <= STAGE_S * len(costs):
        raise _too_short(hours, costs, 0, 0.0)


def _too_short(hours: float, costs: Mapping[str, float], least: int, step_s: float) -> BadInput:
    """Return the error of a run that `least` steps of all its models, of `step_s` seconds, do not fit into."""
    needed = math.ceil(1000 * (STAGE_S * len(costs) + least * step_s) / 3600) / 1000
    need = f" and {counted(least, 'step')} need" if least else " need before any step"
    bound, again = ("at least", " with --overwrite") if least else ("more than", "")  # a run has begun, or not
    return BadInput(
        f"--hours: expected {bound} {needed:g}, which {counted(len(costs), 'stage')} of {STAGE_S:g} s{need}, got {hours:g}; "
        f"give more hours or fewer seeds{again}"
    )


def seconds_of_step(trainer: Trainer, arm: Arm, block: int) -> float:
    """Return the seconds of a step of one block of an arm's models."""
    training = Training(trainer.ensemble(arm, 0, PROBED_STEPS), list(range(PROBED_SEED, PROBED_SEED + block)))
    training.compile()
    chunks = list(training.chunks(chunk_s=1.0))
    first, last = chunks[0], chunks[-1]  # the first step is slower than others
    return (last.train_s - first.train_s) / max(1, last.steps_here - first.steps_here)
