"""Untying at a step that follows from the gradients of the tied table, and its control, untying at the step of another seed.

The rule looks at the cosine of the gradients of the input and the output use of the table, over the rows of the most frequent
tokens. A model is untied at the first recorded step of the constant learning rate at which the running mean of the cosine,
over `WINDOW` records, has been below a threshold for `PATIENCE` steps. The threshold is the median of the running means of the
models that chose the learning rate. A model that never fulfils the rule stays tied.

The *yoked* control unties each model at the step of the next seed, so that the choice of the moment and the moment itself can
be told apart.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tiejax.lab.comparison.arms import Class
from tiejax.lab.comparison.segments import Segment, segments_of
from tiejax.lab.comparison.training import Arrays, Trainer, costs_of, train_block
from tiejax.lab.runs.rates import Pair
from tiejax.lab.studies.causal_untying.plan import EXPLORE, TIED, Arm
from tiejax.lab.studies.causal_untying.settings import DECAY, WARM_UP

WINDOW, PATIENCE = 3, 100  # records, steps
SEEDS = 2  # number of seeds with these arms
FREQUENT = 0  # the bucket of the most frequent tokens
COSINE, STEP = "train_bucket_cosine", "train_step"
NAMES = {"trigger": 0, "yoked": 1}  # arm -> whose step it takes: its own, or that of the next seed


def running_cosines(steps: np.ndarray, cosine: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the recorded steps of the constant learning rate, and the running means of the cosine there, `[seed, record]`.

    cosine: by bucket of tokens, `[seed, record, bucket]`. total: the number of steps of the run.
    """
    windows = np.lib.stride_tricks.sliding_window_view(cosine[..., FREQUENT].astype(float), WINDOW, axis=1)
    later = steps[WINDOW - 1 :]
    constant = (steps[: len(later)] >= WARM_UP * total) & (later <= (1 - DECAY) * total)
    return later[constant], np.nanmean(windows, axis=-1)[:, constant]


def steps_below(steps: np.ndarray, means: np.ndarray, threshold: float, every: int = 1) -> list[int | None]:
    """Return for each seed the first step at which its mean has been below the threshold for `PATIENCE` steps.

    every: models untie at multiples of this step, at which they are also validated.
    """
    possible = [step for step in steps.tolist() if step - PATIENCE >= steps[0] and step % every == 0]

    def first(below: np.ndarray) -> int | None:
        return next((step for step in possible if below[(steps >= step - PATIENCE) & (steps <= step)].all()), None)

    return [first(mean < threshold) for mean in means]


def untied_at_step(step: int, total: int) -> list[Segment]:
    """Return the segments of models that are tied until a step, and untied from there on."""
    fork = Fraction(step, total)
    before = Arm(f"{EXPLORE}before-{step}", True, end=fork, compared=False)
    after = Arm(f"{EXPLORE}at-{step}", False, fork=fork, parent=before.name)
    return segments_of([before, after])


def train_triggered(
    trainer: Trainer, seeds: Sequence[int], tied: Arrays, rates: Mapping[Class, Pair], threshold: float
) -> tuple[Arrays, dict[str, Any]]:
    """Train the models that the rule unties, and their control; return arrays as `ARM/FIELD`, and the steps of each seed.

    tied: the arrays of the tied models of the same seeds.
    """
    seeds = seeds[:SEEDS]
    settings = trainer.recipe.settings
    every = math.lcm(settings.record_every, settings.validate_every)
    means = running_cosines(tied[f"{TIED}/{STEP}"], tied[f"{TIED}/{COSINE}"][: len(seeds)], trainer.steps)
    steps = steps_below(*means, threshold, every)
    trained: dict[int | None, Arrays] = {None: {f: v for f, v in tied.items() if f.startswith(f"{TIED}/")}}
    for step in sorted({step for step in steps if step is not None}):
        segments = untied_at_step(step, trainer.steps)
        for stage, cost in costs_of(segments, seeds).items():
            trainer.stages.add(stage, cost)
        trained[step] = train_block(trainer, segments, seeds, rates)
    arrays: Arrays = {}
    for name, shift in NAMES.items():
        if shift and len(seeds) == 1:
            continue  # there is no other seed
        chosen = [steps[(place + shift) % len(steps)] for place in range(len(steps))]
        arrays |= _assembled(name, chosen, trained)
    return arrays, {"threshold": threshold, "steps": dict(zip(map(str, seeds), steps, strict=True))}


def _assembled(name: str, steps: Sequence[int | None], trained: Mapping[int | None, Arrays]) -> Arrays:
    """Return the arrays of an arm whose seed number i is member i of the models untied at steps[i]."""
    by_seed = [{field.rpartition("/")[2]: values for field, values in trained[step].items()} for step in steps]
    for field, values in by_seed[0].items():
        assert not field.endswith("step") or all(np.array_equal(values, arrays[field]) for arrays in by_seed), field
    return {
        f"{EXPLORE}{name}/{field}": values
        if field.endswith("step")
        else np.stack([arrays[field][place] for place, arrays in enumerate(by_seed)])
        for field, values in by_seed[0].items()
    }
