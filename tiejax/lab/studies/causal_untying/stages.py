"""The stages of a run and what they cost, and the number of steps that a time allows."""

import functools

from tiejax.lab.comparison import segments
from tiejax.lab.comparison.arms import Class
from tiejax.lab.comparison.segments import Segment
from tiejax.lab.comparison.step_count import PLAN, Parts, StepCount, block_size, seconds_of_step
from tiejax.lab.comparison.training import Trainer, Tuning, costs_of
from tiejax.lab.runs.stages import Stages
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.studies.causal_untying import natural
from tiejax.lab.studies.causal_untying.settings import NATURAL_SEEDS, Settings
from tiejax.lab.studies.causal_untying.sizes import MOST_STEPS
from tiejax.lab.studies.causal_untying.summary import TUNED
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.lab.studies.causal_untying.train import Recipe, tuning_arm
from tiejax.lab.studies.causal_untying.trigger import SEEDS

MOST_EPOCHS = 4  # of a run whose steps follow from --hours


def segments_by_kind(settings: Settings) -> tuple[list[Segment], list[Segment], list[Segment]]:
    """Return the segments of the primary arms, of these with the exploratory ones, and of the control with a cosine."""
    primary, control = ([arm for arm in settings.arms if arm.cosine == cosine] for cosine in (False, True))
    return segments.segments_of(primary), segments.segments_of([*primary, *settings.explored]), segments.segments_of(control)


def blocks(settings: Settings, parts: Parts) -> list[tuple[list[int], list[Segment]]]:
    """Return the blocks of seeds of all parts of a run, each with its segments.

    The first block also trains exploratory arms, and the first seeds also train with a cosine.
    """
    main, with_more, control = segments_by_kind(settings)
    seeds = [seed_list(part) for part in parts]
    with_control = set([seed for part in seeds for seed in part][: settings.control_seeds or 0])
    all_blocks = segments.blocks_of(seeds, block_size(parts))
    found = [(block, main if number else with_more) for number, block in enumerate(all_blocks)]
    for block, _ in list(found):
        if chosen := [seed for seed in block if seed in with_control]:
            found.append((chosen, control))
    return found


def tuning_of(settings: Settings, kind: Class, block: int) -> Tuning:
    """Return the models that choose the learning rates of a class of arms, `block` at a time."""
    return Tuning(kind, tuning_arm(kind), settings.tuning_seeds, block, settings.rates, settings.table_factors or [1.0])


def costs(settings: Settings, parts: Parts) -> dict[str, float]:
    """Return the cost of every stage that is planned, in runs of one block."""
    planned = {PLAN: 0.02}
    for kind in TUNED if settings.tuned else ():
        planned |= tuning_of(settings, kind, block_size(parts)).costs()
    if settings.natural_pairs:
        planned[natural.STAGE] = float(-(-len(NATURAL_SEEDS) // block_size(parts)))
    for block, parts_of_block in blocks(settings, parts):
        planned |= costs_of(parts_of_block, block)
    return planned


def step_count_of(settings: Settings, text: Text, stages: Stages, parts: Parts) -> StepCount:
    """Return what decides the number of steps."""
    block = block_size(parts)
    another_rate = len(TUNED) * -(-len(settings.tuning_seeds) // block) if settings.tuned else 0  # for each class
    triggered = SEEDS if settings.explore and (settings.tuned or settings.trigger is not None) else 0  # prefix and untied
    trainer = Trainer(Recipe(settings, text), MOST_STEPS, stages)
    return StepCount(
        steps=settings.steps,
        hours=settings.hours,
        unit=settings.step_unit,
        most=min(MOST_STEPS, MOST_EPOCHS * len(text.train) // settings.batch_size),
        costs=costs(settings, parts[:1]),
        more=another_rate + triggered,
        probe=functools.partial(seconds_of_step, trainer, tuning_arm("untied"), block),
    )
