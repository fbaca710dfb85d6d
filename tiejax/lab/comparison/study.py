"""The run of a comparison of one's own model: tune, train, test, report."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax import tying
from tiejax.lab.comparison import claims, figures, page, segments
from tiejax.lab.comparison.arms import Arm, Class
from tiejax.lab.comparison.data import length_of
from tiejax.lab.comparison.recipe import FINAL, Recipe, with_metrics
from tiejax.lab.comparison.settings import Settings
from tiejax.lab.comparison.step_count import PLAN, StepCount, block_size, seconds_of_step, steps_of
from tiejax.lab.comparison.training import (
    Arrays,
    Trainer,
    Tuning,
    costs_of,
    diverged,
    train_seeds,
    tune,
)
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.gate import Gate, finite_means
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import Looks, facts_of, parts_begun
from tiejax.lab.runs.rates import Tried, rate_lines, tuning_rows
from tiejax.lab.runs.stages import Stages, Stopped
from tiejax.lab.runs.train import begin, check_same_data, warn_of_deadlock
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.settings.sizes import MOST_STEPS
from tiejax.system.json_values import plain
from tiejax.tying.leaves import tree_bytes

Point = tuple[float, ...]  # learning rates of a model: the optimizer's, and that of the tables if it takes one


class Subject(NamedTuple):
    """What is compared.

    Attributes:
        study: the name of the study.
        name: its name on the page.
        recipe: how its models train.
        arms: the arms.
        unit: the unit of the loss.
        claims: final losses by arm -> further claims.
        sections: results -> tables for the page.
        fingerprint: of the data.
        gate: the loss that models must reach, if there is one.
    """

    study: str
    name: str
    recipe: Recipe
    arms: Sequence[Arm]
    unit: str
    claims: claims.OwnClaims | None
    sections: Sequence[page.Section]
    fingerprint: str
    gate: Gate | None = None

    @property
    def classes(self) -> dict[Class, Arm]:
        """The classes of arms that have learning rates of their own, each with the arm whose models choose them."""
        found: dict[Class, Arm] = {}
        for arm in self.arms:
            found.setdefault(arm.rate_of, Arm(arm.rate_of, arm.rate_of == "tied", equal=arm.rate_of == "tied"))
        return found


def run(launched: Launched, console: Console) -> int:
    """Run a comparison; return its exit status."""
    settings, directory, subject = launched.settings, launched.run, launched.prepared
    if directory is not None:
        directory.bind(subject.fingerprint)
    check_same_data(subject.fingerprint, "training: the processes have different examples; give all of them the same")
    stop = begin(launched, console, max(1, len(claims.compared(subject.arms))))
    parts = parts_begun(launched)
    announce(settings, subject, console)
    warn_of_deadlock(settings.mesh, console)
    block, known = block_size(parts, settings.mesh), settings.steps or MOST_STEPS
    stages = Stages(launched, console, stop, costs(settings, subject, parts, known))
    try:
        with console:
            steps = steps_of(step_count_of(settings, subject, stages, parts), stages, block, console)
            every = settings.every(steps)
            subject = subject._replace(recipe=subject.recipe._replace(every=every), arms=on_records(subject.arms, steps, every))
            trainer = Trainer(subject.recipe, steps, stages)
            every_class = tunings(settings, subject, block)
            tried = tune_all(trainer, every_class, subject, console) if settings.tuned else {}
            rates = {one.kind: one.rate_of(*(tried[one.kind].pair if tried else one.first)) for one in every_class}
            whole, test = segments.segments_of(subject.arms), functools.partial(rows_of, subject=subject, settings=settings)
            in_blocks = functools.partial(blocks_of, whole=whole, size=block)
            arrays, parts, looks = train_seeds(launched, trainer, rates, in_blocks, test, console)
    except Stopped:
        console.result(f"stopped with {stages.share:.0%} of the run done; continue with the same command and --resume")
        return 130
    if directory is None:
        return 0

    seeds = [seed for part in parts for seed in part]
    directory.write_metrics({"seeds": np.array(seeds), **{name.replace("/", "."): values for name, values in arrays.items()}})
    with console.stage("analysis"):
        body = summary(arrays, seeds, subject, settings, looks)
    results = plain(
        {
            "experiment": subject.study,
            **described(subject, settings, steps),
            "rates": rates,
            "tuning": tuning_rows(tried),
            "tuning_seeds": settings.tuning_seeds if settings.tuned else [],
            **body,
            **facts_of(looks, parts),
            "timing": stages.timing,
        }
    )
    render = functools.partial(page.page, sections=subject.sections)
    finish(launched, console, results, figures.plot_all(arrays, results), render)
    console.result(page.sentence(results))
    return 0


def announce(settings: Settings, subject: Subject, console: Console) -> None:
    """Print what is compared."""
    data = subject.recipe.data
    examples = "batches of a function" if data.made else f"{length_of(data.training):,} examples"
    names = ", ".join(arm.name for arm in subject.arms)
    console.say(
        f"{subject.name}: {counted(len(subject.arms), 'arm')} ({names}) x {counted(settings.number_of_seeds, 'seed')} on "
        f"{jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, in {settings.out}"
    )
    epochs = ""
    if settings.steps is not None and not data.made:
        epochs = f", {settings.steps * data.batch_size / length_of(data.training):.2f} epochs a model"
    console.say(
        f"training: {examples} in batches of {data.batch_size}{epochs}; held out: {length_of(data.held_out):,} examples"
    )


def on_records(arms: Sequence[Arm], steps: int, every: int) -> list[Arm]:
    """Return the arms with each fork at the nearest step of a record, so that the records of all arms are at the same steps."""

    def moved(arm: Arm) -> Arm:
        if arm.fork is None:
            return arm
        step = min(max(1, round(arm.fork * steps / every)) * every, (steps - 1) // every * every)
        return dataclasses.replace(arm, fork=Fraction(max(step, 1), steps))

    return [moved(arm) for arm in arms]


def tunings(settings: Settings, subject: Subject, block: int) -> list[Tuning]:
    """Return the models that choose the learning rates of each class of arms, `block` at a time."""
    tried = list(settings.rates or ()), list(settings.table_factors or (1.0,))
    rate_of = functools.partial(point_of, subject)
    return [Tuning(kind, arm, settings.tuning_seeds, block, *tried, rate_of) for kind, arm in subject.classes.items()]


def costs(settings: Settings, subject: Subject, parts: Sequence[int | list[int]], steps: int) -> dict[str, float]:
    """Return the cost of every stage that is planned, in runs of one block."""
    block, planned = block_size(parts, settings.mesh), {PLAN: 0.02}
    for tuning in tunings(settings, subject, block) if settings.tuned else ():
        planned |= tuning.costs()
    whole = segments.segments_of(on_records(subject.arms, steps, settings.every(steps)))
    for seeds in segments.blocks_of([seed_list(part) for part in parts], block):
        planned |= costs_of(whole, seeds)
    return planned


def step_count_of(settings: Settings, subject: Subject, stages: Stages, parts: Sequence[int | list[int]]) -> StepCount:
    """Return what decides the number of steps."""
    block = block_size(parts, settings.mesh)
    trainer = Trainer(subject.recipe, MOST_STEPS, stages)
    kinds = len(subject.classes) if settings.tuned else 0
    return StepCount(
        steps=settings.steps,
        hours=settings.hours,
        unit=1,
        most=MOST_STEPS,
        costs=costs(settings, subject, parts[:1], MOST_STEPS),
        more=float(kinds * -(-len(settings.tuning_seeds) // block)),
        probe=functools.partial(seconds_of_step, trainer, Arm("probe", False, equal=False), block),
    )


def point_of(subject: Subject, rate: float, factor: float) -> Point:
    """Return the learning rates of a model."""
    return (rate,) if subject.recipe.rates == 1 else (rate, rate * factor)


def tune_all(trainer: Trainer, every_class: Sequence[Tuning], subject: Subject, console: Console) -> dict[Class, Tried]:
    """Choose the learning rates of every class of arms, among those of the settings."""
    tried = {tuning.kind: tune(trainer, tuning) for tuning in every_class}
    for line in rate_lines(tried, subject.unit):
        console.say(line)
    if subject.gate is not None:
        subject.gate.check({kind: each.losses[each.best].mean() for kind, each in tried.items()})
    return tried


def blocks_of(
    parts: Sequence[list[int]], whole: Sequence[segments.Segment], size: int
) -> list[tuple[list[int], Sequence[segments.Segment]]]:
    """Return the blocks of seeds of all parts of a run, each with all segments."""
    return [(seeds, whole) for seeds in segments.blocks_of(parts, size)]


def rows_of(arrays: Arrays, seeds: list[int], looks: Looks, subject: Subject, settings: Settings) -> list[dict[str, Any]]:
    """Return the rows of the claims."""
    rows: list[dict[str, Any]] = summary(arrays, seeds, subject, settings, looks)["claims"]
    return rows


def final_losses(arrays: Arrays, arms: Sequence[Arm]) -> dict[str, np.ndarray]:
    """Return the final held-out loss of every arm, `[seed]`."""
    return {arm.name: arrays[f"{arm.name}/{FINAL}"].astype(float) for arm in arms if f"{arm.name}/{FINAL}" in arrays}


def summary(arrays: Arrays, seeds: Sequence[int], subject: Subject, settings: Settings, looks: Looks) -> dict[str, Any]:
    """Return final losses, claims and diverged models, as in results.json."""
    losses = final_losses(arrays, subject.arms)
    done = looks.done or [len(seeds)]
    gate = {} if subject.gate is None else subject.gate.facts(finite_means(losses))
    about = losses, subject.arms, settings.margin, subject.unit, subject.claims
    rows = claims.verdicts(*about, done, max(1, len(looks.planned)), not (gate and gate["gate"]["failed"]))
    non_finite = diverged(arrays, losses, seeds)
    return {
        "seeds": list(seeds),
        "arms": {arm: {"loss": values.tolist()} for arm, values in losses.items()},
        "excluded_seeds": sorted({row["seed"] for row in non_finite}),
        "non_finite": non_finite,
        **gate,
        "claims": [row for family in rows.values() for row in family],
        "families": {family: [row["id"] for row in of_family] for family, of_family in rows.items()},
    }


def described(subject: Subject, settings: Settings, steps: int) -> dict[str, Any]:
    """Return what was compared, as in results.json."""
    data, names = subject.recipe.data, [arm.name for arm in subject.arms]
    examples = None if data.made else length_of(data.training)
    params = jax.eval_shape(subject.recipe.init, jax.random.key(0))
    flops = flops_of(subject.recipe, params)  # of all arms: a tie costs no operation
    return {
        "name": subject.name,
        "unit": subject.unit,
        "margin": settings.margin,
        "baseline": "tied" if "tied" in names else names[0],
        "forks": {arm.name: segments.step_at(arm.fork, steps) for arm in subject.arms if arm.fork is not None},
        "pairs": {f"{first}/{second}": [first, second] for first, second in claims.compared(subject.arms)},
        "ties": [str(tie) for tie in subject.recipe.ties],
        "steps": steps,
        "batch_size": data.batch_size,
        "examples": examples,
        "epochs": None if examples is None else steps * data.batch_size / examples,
        "held_out": length_of(data.held_out),
        "fingerprint": subject.fingerprint,
        "costs": {arm.name: sizes_of(params, subject.recipe.ties, arm) | {"flops": flops} for arm in subject.arms},
    }


def sizes_of(params: Any, ties: tying.Ties, arm: Arm) -> dict[str, int]:
    """Return the parameters and stored bytes of an arm's model at the end."""
    kept = tying.store(params, ties) if arm.tied else params
    return {"parameters": sum(leaf.size for leaf in jax.tree.leaves(kept)), "bytes": tree_bytes(kept)}


def flops_of(recipe: Recipe, params: Any) -> float | None:
    """Return the floating-point operations of the loss and its gradient on one batch; None if XLA does not count them."""
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), recipe.data.batch())
    step = jax.jit(jax.value_and_grad(with_metrics(recipe.loss), has_aux=True))
    found = step.lower(params, batch, jax.eval_shape(lambda: jax.random.key(0))).cost_analysis()
    return float(found["flops"]) if isinstance(found, Mapping) and "flops" in found else None
