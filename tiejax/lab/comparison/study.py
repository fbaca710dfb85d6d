"""The run of a comparison of one's own model: tune, train, test, report."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax

from tiejax import tying
from tiejax.lab.comparison import claims, figures, page, segments
from tiejax.lab.comparison.arms import Arm, Class
from tiejax.lab.comparison.claims import compared
from tiejax.lab.comparison.data import length_of
from tiejax.lab.comparison.recipe import FINAL, Recipe, with_metrics
from tiejax.lab.comparison.settings import SCRIPT, Settings
from tiejax.lab.comparison.step_count import block_size, costs_of_run, steps_of
from tiejax.lab.comparison.training import Arrays, Trainer, Tuning, metrics_of, train_seeds, tune, with_claims
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.gate import Gate, finite_means
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import Looks, facts_of, parts_begun
from tiejax.lab.runs.rates import Tried, rate_lines, tuning_rows
from tiejax.lab.runs.stages import Stages
from tiejax.lab.runs.train import begin, check_same_data, warn_of_deadlock
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import MOST_STEPS
from tiejax.statistics.claims import Claim
from tiejax.system.json_values import plain
from tiejax.tying.leaves import tree_bytes


class Subject(NamedTuple):
    """What is compared, as a `Comparison` describes it.

    study: the name of the study. fingerprint: of the data. script: see `script.described`.
    """

    study: str
    name: str
    recipe: Recipe
    arms: Sequence[Arm]
    unit: str
    claims: claims.OwnClaims | None
    sections: Sequence[page.Section]
    fingerprint: str
    script: Mapping[str, Any]
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
        directory.keep(SCRIPT, json.dumps(subject.script, indent=1).encode())
    check_same_data(subject.fingerprint, "training: the processes have different examples; give all of them the same")
    stop = begin(launched, console, max(1, len(claims.compared(subject.arms))))
    parts = parts_begun(launched)
    announce(settings, subject, console)
    warn_of_deadlock(settings.mesh, console)
    block = block_size(parts[0], settings.mesh)
    every_class = tunings(settings, subject, block)
    tuned = every_class if settings.tuned else []
    stages = Stages(launched, console, stop, costs_of_parts(settings, subject, parts))
    with console:
        longest, probe = Trainer(subject.recipe, MOST_STEPS, stages), Arm("probe", False, equal=False)
        least = 1 + any(arm.fork is not None for arm in subject.arms)
        costs = costs_of_parts(settings, subject, parts[:1])
        steps = steps_of(longest, settings, probe, block, costs, tuned, console, least=least)
        every = settings.every(steps)
        check_forks(subject.arms, steps, every)
        subject = subject._replace(recipe=subject.recipe._replace(every=every), arms=on_records(subject.arms, steps, every))
        trainer = Trainer(subject.recipe, steps, stages)
        tried = tune_all(trainer, tuned, subject, console)
        rates = {one.kind: one.rate_of(*(tried[one.kind].pair if tried else one.first)) for one in every_class}
        fewest = settings.fewest(claims=(len(compared(subject.arms)), len(subject.script["claims"])))
        blocks = functools.partial(blocks_of, whole=segments.segments_of(subject.arms), size=block)

        def rows(arrays: Arrays, seeds: list[int], looks: Looks) -> list[dict[str, Any]]:
            return list(summary(arrays, seeds, subject, settings, looks)["claims"])

        arrays, parts, looks = train_seeds(launched, trainer, rates, blocks, rows, console, fewest)
    if directory is None:
        return 0

    seeds = [seed for part in parts for seed in part]
    directory.write_metrics(metrics_of(arrays, seeds))
    with console.stage("analysis"):
        body = summary(arrays, seeds, subject, settings, looks)
    results = plain(
        {
            "experiment": subject.study,
            **described(subject, settings, steps),
            "rates": rates,
            "rates_of": {arm.name: arm.rate_of for arm in subject.arms},
            "tuning": tuning_rows(tried),
            "tuning_seeds": settings.tuning_seeds if settings.tuned else [],
            **body,
            **facts_of(looks, parts),
            "timing": stages.timing,
        }
    )
    render = functools.partial(page.page, sections=subject.sections)
    finish(launched, console, results, figures.plot_all(arrays, results), render)
    console.result(page.answer(results))
    return 0


def costs_of_parts(settings: Settings, subject: Subject, parts: Sequence[list[int]]) -> dict[str, float]:
    """Return the cost of every stage that is planned for these parts of a run."""
    block, known = block_size(parts[0], settings.mesh), settings.steps or MOST_STEPS
    planned = segments.segments_of(on_records(subject.arms, known, settings.every(known)))
    tuned = tunings(settings, subject, block) if settings.tuned else []
    return costs_of_run(tuned, blocks_of(parts, planned, block))


def announce(settings: Settings, subject: Subject, console: Console) -> None:
    """Print what is compared."""
    data = subject.recipe.data
    examples = "batches of a function" if data.made else f"{length_of(data.training):,} examples"
    names = ", ".join(arm.name for arm in subject.arms)
    console.say(
        f"{subject.name}: {counted(len(subject.arms), 'arm')} ({names}) x {counted(settings.number_of_seeds, 'seed')} on "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, in {settings.out}"
    )
    epochs = ""
    if settings.steps is not None and not data.made:
        epochs = f", {settings.steps * data.batch_size / length_of(data.training):.2f} epochs a model"
    console.say(
        f"training: {examples} in batches of {data.batch_size}{epochs}; held out: {length_of(data.held_out):,} examples"
    )


def on_records(arms: Sequence[Arm], steps: int, every: int) -> list[Arm]:
    """Return the arms with each fork at the nearest step of a record, so that the records of all arms are at the same steps."""

    def moved(fork: Fraction) -> Fraction:
        step = min(max(1, round(fork * steps / every)) * every, (steps - 1) // every * every)
        return Fraction(max(step, 1), steps)

    return [arm if arm.fork is None else dataclasses.replace(arm, fork=moved(arm.fork)) for arm in arms]


def check_forks(arms: Sequence[Arm], steps: int, every: int) -> None:
    """Raise BadInput unless arms that change do so within the run, at different steps if they change alike."""
    changing = [arm for arm in arms if arm.fork is not None]
    if changing and every >= steps:
        raise BadInput(f"--record_every: {changing[0].name} changes at a record: expected less than {steps} steps, got {every}")
    found: dict[Any, str] = {}
    moved = on_records(arms, steps, every)
    for arm in moved:
        if arm.fork is None:
            continue
        other = found.setdefault((arm.parent, arm.fork, arm.change, arm.tied), arm.name)
        if other != arm.name:
            step = segments.step_at(arm.fork, steps)
            raise BadInput(f"arms: {other} and {arm.name} are one: both change at step {step} of {steps}, that of a record")
    stages: dict[str, str] = {}
    for segment in segments.segments_of(moved):
        if (other := stages.setdefault(segment.name, segment.arm.name)) != segment.arm.name:
            raise BadInput(f"arms: the names {other} and {segment.arm.name} are too alike for the files of a run; change one")


def tunings(settings: Settings, subject: Subject, block: int) -> list[Tuning]:
    """Return the models that choose the learning rates of each class of arms, `block` at a time."""
    tried = list(settings.rates or ()), list(settings.table_factors or (1.0,))
    two = subject.recipe.rates == 2  # the second is that of the tables

    def rate_of(rate: float, factor: float) -> tuple[float, ...]:
        return (rate, rate * factor) if two else (rate,)

    return [Tuning(kind, arm, settings.tuning_seeds, block, *tried, rate_of) for kind, arm in subject.classes.items()]


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


def summary(arrays: Arrays, seeds: Sequence[int], subject: Subject, settings: Settings, looks: Looks) -> dict[str, Any]:
    """Return final losses, claims and diverged models, as in results.json."""
    names = [arm.name for arm in subject.arms]
    losses = {name: arrays[f"{name}/{FINAL}"].astype(float) for name in names if f"{name}/{FINAL}" in arrays}

    def claims_of(seeds: int) -> dict[str, list[Claim]]:
        of_seeds = {arm: values[:seeds] for arm, values in losses.items()}
        return claims.claims(of_seeds, subject.arms, settings.margin, subject.unit, subject.claims)

    gate = {} if subject.gate is None else subject.gate.facts(finite_means(losses))
    tested = not (gate and gate["gate"]["failed"])
    rows = claims.rows_by_family(claims_of, looks.done or [len(seeds)], max(1, len(looks.planned)), tested)
    return {
        "seeds": list(seeds),
        "arms": {arm: {"loss": values.tolist()} for arm, values in losses.items()},
        **gate,
        **with_claims(arrays, losses, seeds, rows),
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
