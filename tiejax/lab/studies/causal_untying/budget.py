"""The stages of a run and what they cost, and the number of steps that a time allows."""

import functools
import math
from collections.abc import Sequence

import jax
import numpy as np

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.stages import Stages
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.causal_untying import natural, plan
from tiejax.lab.studies.causal_untying.model import objective_of
from tiejax.lab.studies.causal_untying.plan import Segment
from tiejax.lab.studies.causal_untying.settings import NATURAL_SEEDS, Settings
from tiejax.lab.studies.causal_untying.sizes import MOST_STEPS
from tiejax.lab.studies.causal_untying.summary import TUNED
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.lab.studies.causal_untying.train import Arrays, Members, Trainer, costs_of, tuning_arm, tuning_blocks, tuning_stage
from tiejax.lab.studies.causal_untying.trigger import SEEDS
from tiejax.training.loop import Training

Parts = Sequence[int | list[int]]
PLAN, PROBED_STEPS = "plan", 60  # the stage that fixes the number of steps and the size of blocks
STAGE_S, SLACK = 12.0, 1.05  # seconds of a stage besides training: compilation, final losses; records and checkpoints


def block_size(parts: Parts) -> int:
    """Return the number of models that train together: one on each CPU core; on an accelerator, all seeds of the first part."""
    devices: int = jax.device_count()
    if jax.default_backend() == "cpu":
        return devices
    return max(devices, len(seed_list(parts[0])))


def segments_by_kind(settings: Settings) -> tuple[list[Segment], list[Segment], list[Segment]]:
    """Return the segments of the primary arms, of these with the exploratory ones, and of the control with a cosine."""
    primary, control = ([arm for arm in settings.arms if arm.cosine == cosine] for cosine in (False, True))
    return plan.segments_of(primary), plan.segments_of([*primary, *settings.explored]), plan.segments_of(control)


def blocks(settings: Settings, parts: Parts) -> list[tuple[list[int], list[Segment]]]:
    """Return the blocks of seeds of all parts of a run, each with its segments.

    The first block also trains exploratory arms, and the first seeds also train with a cosine.
    """
    main, with_more, control = segments_by_kind(settings)
    seeds = [seed_list(part) for part in parts]
    with_control = set([seed for part in seeds for seed in part][: settings.control_seeds or 0])
    all_blocks = plan.blocks_of(seeds, block_size(parts))
    found = [(block, main if number else with_more) for number, block in enumerate(all_blocks)]
    for block, _ in list(found):
        if chosen := [seed for seed in block if seed in with_control]:
            found.append((chosen, control))
    return found


def costs(settings: Settings, parts: Parts) -> dict[str, float]:
    """Return the cost of every stage that is planned, in runs of one block."""
    planned = {PLAN: 0.02}
    for kind in TUNED if settings.tuned else ():
        tried = tuning_blocks(settings.rates, settings.tuning_seeds, block_size(parts))
        planned |= {tuning_stage(kind, members): 1.0 for members in tried}
    if settings.natural_pairs:
        planned[natural.STAGE] = float(-(-len(NATURAL_SEEDS) // block_size(parts)))
    for block, segments in blocks(settings, parts):
        planned |= costs_of(segments, block)
    return planned


def steps_of(settings: Settings, text: Text, stages: Stages, parts: Parts, console: Console) -> int:
    """Return the number of steps, which is fixed when the run starts; raises BadInput if blocks now have another size."""
    found = stages.once(PLAN, functools.partial(fix_plan, settings, text, stages, parts))
    if int(found["block"]) != block_size(parts):
        raise BadInput(
            f"--resume: the run was started with {int(found['block'])} models at a time, which are {block_size(parts)} on "
            "the devices of this machine; set JAX_NUM_CPU_DEVICES, or start another run"
        )
    steps = int(found["steps"])
    if settings.steps is None:
        console.say(f"{steps:,} steps: {float(found['seconds_per_step']):.3f} s a step of {block_size(parts)} models")
    return steps


def fix_plan(settings: Settings, text: Text, stages: Stages, parts: Parts) -> Arrays:
    """Return the number of steps, that of the settings or what `--hours` allows at a measured rate, and the size of blocks."""
    steps, seconds = settings.steps, math.nan
    if steps is None:
        assert settings.hours is not None
        seconds, planned = probe(settings, text, stages, block_size(parts)), costs(settings, parts[:1])
        one_more = tuning_blocks(settings.rates[:1], settings.tuning_seeds, block_size(parts))
        another_rate = len(TUNED) * len(one_more) if settings.tuned else 0  # for each class
        triggered = SEEDS if settings.explore and (settings.tuned or settings.trigger is not None) else 0  # prefix and untied
        whole = sum(planned.values()) + another_rate + triggered
        allowed = max(0.0, settings.hours * 3600 - STAGE_S * len(planned)) / (whole * seconds * SLACK)
        unit = settings.step_unit
        steps = max(unit, math.floor(min(MOST_STEPS, allowed) / unit) * unit)
    return {"steps": np.array(steps), "block": np.array(block_size(parts)), "seconds_per_step": np.array(seconds)}


def probe(settings: Settings, text: Text, stages: Stages, size: int) -> float:
    """Return the seconds of a step of one block of `size` untied models."""
    trainer, arm = Trainer(settings, text, MOST_STEPS, stages), tuning_arm("untied")
    objective = objective_of(settings, text, arm)
    members = Members(list(range(2000, 2000 + size)), [settings.rates[0]] * size)
    training = Training(trainer.ensemble(objective, arm, 0, PROBED_STEPS), members.seeds)
    training.compile()
    chunks = list(training.chunks(chunk_s=1.0))
    first, last = chunks[0], chunks[-1]  # the first step is slower than others
    return (last.train_s - first.train_s) / (last.steps_here - first.steps_here)
