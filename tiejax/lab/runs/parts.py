"""Runs whose seeds train in parts, one after the other: seeds that were appended, or those of looks until all is decided.

    --resume --seeds 128        part 1: the seeds of the run so far    part 2: those that are appended
    --until decided             part 1: the seeds of the first look    test    part 2: those that the next look adds    test ...

Each part is an ensemble with its own folder of checkpoints. run.json lists the parts that have begun, so that a run that is
killed at any point resumes there. Records and members are joined along the axis of the seeds before they are analysed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.checkpoints import Part
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.train import timing_of, train
from tiejax.lab.settings.checks import looks_up_to, seed_list
from tiejax.lab.settings.shared import LookSettings
from tiejax.training import cluster
from tiejax.training.ensemble import Ensemble
from tiejax.training.loop import Trained
from tiejax.training.records import Records, join_records, join_seeds

Rows = Sequence[Mapping[str, Any]]


class Looks(NamedTuple):
    """The numbers of seeds at which claims are tested.

    planned: ascending; none without `until` and without seeds appended to a finished run. done: the first of them. appended:
    whether they were not planned beforehand.
    """

    planned: Sequence[int]
    done: Sequence[int]
    appended: bool = False

    def or_one(self, seeds: int) -> tuple[Sequence[int], int]:
        """Return the looks that are done and how many are planned; for a run without looks, one, with all `seeds` seeds."""
        return (self.done, len(self.planned)) if self.planned else ([seeds], 1)


class InSeries(NamedTuple):
    """The place of a run among several that train one after the other.

    label: its name on the console. later: cost of the runs that follow, in units of this run's. show_claims: whether its claims
    are printed, as well as in its report.
    """

    label: str = ""
    later: float = 0.0
    show_claims: bool = True


class TrainedParts(NamedTuple):
    """The result of all parts.

    settings: for all trained seeds, without looks. records: as in `Trained`, of all seeds. params: the parameters of all
    members at the end, leaves `[seed, arm, ...]`. looks: planned and done.
    timing: as in results.json. facts: fields of results.json on the parts, for a run of several.
    """

    settings: Any
    records: Records
    params: Any
    looks: Looks
    timing: dict[str, float | None]
    facts: dict[str, Any]


def train_parts(
    launched: Launched,
    console: Console,
    stop: Callable[[], bool],
    build: Callable[[Any], Ensemble],
    seeds_of: Callable[[Any], tuple[Sequence[int], Sequence[int]]],
    test: Callable[[Any, Records, Looks], Rows],
    arms: Sequence[str],
    records_on_disk: bool = False,
    series: InSeries = InSeries(),  # noqa: B008, a constant
    tracked: Callable[[Records], Records] = lambda records: records,
) -> TrainedParts | None:
    """Train all parts of a run and, with `--until decided`, those that its claims require; return None if asked to stop.

    Args:
        launched: the process.
        console: the console.
        stop: returns whether the run was asked to stop.
        build: (settings of a part) -> its ensemble.
        seeds_of: (settings of a part) -> conditions and seeds of its ensemble, all seeds under the first condition, then under
            the next.
        test: (settings, records, looks) -> rows of the claims at a look; settings and records are of all seeds so far.
        arms: names of the arms.
        records_on_disk: see `training.train`.
        series: the place of the run among several.
        tracked: as in `train`.
    """
    settings = launched.settings
    seeds = parts_begun(launched)
    conditions = len(seeds_of(settings)[1]) // settings.number_of_seeds
    scratch = launched.run.path if records_on_disk and launched.run is not None else None
    done, model_steps = list[Trained](), 0
    while True:
        own = settings.of_seeds(seeds[len(done)])
        ensemble, (numbers, names) = build(own), seeds_of(own)
        models = len(names) * len(ensemble.arm_ties)
        part = _part(settings, len(done), [len(each) for each in seeds], series)
        trained = train(
            ensemble, names, launched, console, stop, models, arms, numbers, tracked, records_on_disk=records_on_disk, part=part
        )
        if not trained.finished:
            return None
        done.append(trained)
        model_steps += trained.steps_here * models
        if len(done) < len(seeds):
            continue
        so_far = settings.of_seeds([seed for each in seeds for seed in each])
        looks = looks_done(launched, [len(each) for each in seeds])
        joined = join_records([each.records for each in done], conditions, scratch)
        if (more := value_of_first(lambda: next_seeds(launched, console, looks, lambda: test(so_far, joined, looks)))) is None:  # noqa: B023
            break
        seeds.append(more)
    times = sum(each.compile_s for each in done), sum(each.train_s for each in done)
    params = jax.tree.map(lambda *leaves: join_seeds(leaves, 0, conditions), *(each.members.state.params for each in done))
    return TrainedParts(so_far, joined, params, looks, timing_of(*times, model_steps), facts_of(looks, seeds))


def looks_done(launched: Launched, seeds_by_part: Sequence[int], fewest: int = 1) -> Looks:
    """Return the looks of a run whose parts, with these numbers of seeds, are trained.

    Seeds that are appended to a finished run are a further look: its claims had been tested before. With less than `fewest`
    seeds no claim could be decided, which is no look.
    """
    if planned := planned_looks(launched.settings, seeds_by_part[0]):
        return Looks(planned, np.cumsum(seeds_by_part).tolist())
    run = launched.run
    tested = [n for n in value_of_first(lambda: list(run.manifest.tested) if run else None) if n >= fewest]
    looks = [*tested, sum(seeds_by_part)] if tested else []
    return Looks(looks, looks, appended=bool(looks))


def planned_looks(settings: LookSettings, first: int) -> Sequence[int]:
    """Return the looks of a run whose first part has `first` seeds: with fewer than the first planned look, all in the list."""
    planned: Sequence[int] = settings.looks
    return planned if not planned or planned[0] <= first else looks_up_to(settings.LOOKS, settings.number_of_seeds)


def parts_begun(launched: Launched) -> list[list[int]]:
    """Return the seeds of the parts that have begun, which the first process reads."""
    run = launched.run
    found: list[list[int]] = value_of_first(lambda: [seed_list(part) for part in run.manifest.all_parts] if run else None)
    return found


def value_of_first(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, a JSON value, in the first process to all processes."""
    return json.loads(cluster.done_by_first(lambda: json.dumps(work()).encode()))


def _part(settings: LookSettings, number: int, seeds_by_part: Sequence[int], series: InSeries) -> Part:
    """Return a part with its label, and the cost of what may follow; costs are proportional to seeds."""
    own, trained, whole = seeds_by_part[number], sum(seeds_by_part[: number + 1]), settings.number_of_seeds
    label = ""
    if settings.until is not None:
        label = f"look {number + 1} of {len(planned_looks(settings, seeds_by_part[0]))}, {trained:,} seeds"
    elif len(seeds_by_part) > 1:
        label = f"part {number + 1} of {len(seeds_by_part)}"
    return Part(number, ", ".join(filter(None, [series.label, label])), (whole - trained + series.later * whole) / own)


def next_seeds(launched: Launched, console: Console, looks: Looks, test: Callable[[], Rows]) -> list[int] | None:
    """Return the seeds of the next part, which becomes part of the run, or None if no seeds are to be added.

    A finished run, whose results are written again, is not continued, even if claims are undecided by the present rules.
    """
    run = launched.run
    if run is None or run.finished or len(looks.done) == len(looks.planned):
        return None
    registered = [row for row in test() if row["family"] == "registered"]
    if not registered:
        console.say("no claim is registered about this run: no seeds are added")
        return None
    if not (left := [row for row in registered if row["verdict"] == "undecided"]):
        console.say(f"every registered claim is decided with {looks.done[-1]:,} seeds")
        return None
    until = looks.planned[len(looks.done)]
    seeds: list[int] = launched.settings.seed_list[looks.done[-1] : until]
    console.say(f"{counted(len(left), 'claim')} undecided with {looks.done[-1]:,} seeds: going on to {until:,}")
    run.append_part(seeds)
    return seeds


def facts_of(looks: Looks, seeds: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the fields of results.json on looks or on appended seeds; none for a run of one part."""
    if looks.planned:
        found = {"planned": list(looks.planned), "done": list(looks.done)}
        return {"looks": found | ({"appended": True} if looks.appended else {})}
    return {"seeds_by_part": [len(each) for each in seeds]} if len(seeds) > 1 else {}
