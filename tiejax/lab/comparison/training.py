"""Training of the segments of a comparison, each of them a stage of the run, and of the models that choose learning rates."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax import training, tying
from tiejax.lab.comparison import segments
from tiejax.lab.comparison.arms import Arm, Class
from tiejax.lab.comparison.segments import Segment
from tiejax.lab.reporting.words import seeds_words
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.manifest import digest_of_json
from tiejax.lab.runs.parts import Looks, looks_done, next_seeds, parts_begun, value_of_first
from tiejax.lab.runs.rates import KEPT, Pair, Tried, choose_rates
from tiejax.lab.runs.stages import Stages
from tiejax.training.checkpoint import from_arrays, to_arrays
from tiejax.training.step import TrainState

PyTree = Any
Arrays = dict[str, np.ndarray]
Rate = Any  # a learning rate, or several, as the recipe takes them
STATE = "state"  # prefix of the arrays of a segment's final state
STEP = re.compile("([^_]+_)?step")
LONGEST = 180  # characters of the seeds in the name of a stage, which names a folder


class Members(NamedTuple):
    """Models of one arm that train together, one on each device: their seeds, and their learning rates."""

    seeds: Sequence[int]
    rates: Sequence[Rate]


@dataclasses.dataclass(frozen=True, eq=False)
class Trainer:
    """What training needs: the recipe, the number of steps of a whole run, and the run's stages.

    Blocks of seeds, learning rates and arms that train alike share an ensemble, and so its compiled programs. The recipe says
    how the models are built, trained and judged, by no more of an arm than `Arm.trained`:

    * `ensemble(arm, first, last, steps)`: the ensemble that trains an arm for the steps first, ..., last - 1 of a run of
      `steps` steps, counted from 0. Its optimizer state has the same leaves for all arms, so that a child can continue it.
    * `with_rates(opt_state, rates)`: the optimizer state of members `[seed, 1, ...]` with the learning rates of each seed.
    * `judge(arm)`: a function from params of trained members `[seed, 1, ...]` to arrays `[seed, ...]`.
    * `final_loss(judged)`: the final loss `[seed]` from these arrays.
    """

    recipe: Any
    steps: int
    stages: Stages

    def ensemble(self, arm: Arm, first: int, last: int) -> training.Ensemble:
        """Return the ensemble that trains an arm for the steps first, ..., last - 1 of the run."""
        return self._ensemble(arm.trained, first, last)

    @functools.cached_property
    def _ensemble(self) -> Callable[[Arm, int, int], training.Ensemble]:
        return functools.cache(lambda arm, first, last: self.recipe.ensemble(arm, first, last, self.steps))

    def judge(self, arm: Arm) -> Callable[[PyTree], Arrays]:
        """Return parameters of an arm's trained members -> what their final loss is computed from."""
        return self._judge(arm.trained)

    @functools.cached_property
    def _judge(self) -> Callable[[Arm], Callable[[PyTree], Arrays]]:
        return functools.cache(self.recipe.judge)

    def first_state(self, arm: Arm, members: Members) -> TrainState:
        """Return the state of an arm's models before their first step, `[seed, 1, ...]`."""
        ensemble = self.ensemble(dataclasses.replace(arm, tied=arm.equal), 0, self.steps)
        state = ensemble.start(members.seeds).state
        # Compiled together, the two uses of one random draw may differ by rounding; equal leaves have the same bits.
        copied = jax.vmap(jax.vmap(lambda params: tying.copy_to_targets(params, params, ensemble.ties, arm.equal)))
        params = copied(state.params)
        state = state._replace(params=params, opt_state=self.recipe.with_rates(state.opt_state, members.rates))
        if not arm.by_use:
            return state
        start = jax.vmap(jax.vmap(lambda params: ensemble.optimizer.init(tying.only_tied(params, ensemble.ties))))
        return state._replace(use_states=self.recipe.with_rates(start(params), members.rates))

    def segment(self, stage: str, segment: Segment, members: Members, before: Arrays | None, keep: bool) -> Arrays:
        """Train a segment; return its records `[seed, record]`, what judges it if it is the last one, and its state.

        stage: the name of the stage. before: the arrays of the segment that it continues. keep: return the state.
        """
        arm = segment.arm
        first, last = segment.steps(self.steps)
        parent = arm if segment.after is None else segment.after.arm
        if before is None:
            state = self.first_state(parent, members)
        else:
            state = from_arrays(before, jax.eval_shape(lambda: self.first_state(parent, members)), STATE)
        if parent is not arm:
            state = self.changed(arm, parent, state)
        different = list(dict.fromkeys(members.rates))
        conditions = [different.index(rate) for rate in members.rates]
        ensemble = self.ensemble(arm, first, last)
        trained = self.stages.train(stage, ensemble, members.seeds, conditions, first=first, start=state)
        arrays = records_of(trained.records, first)
        final = trained.members.state
        if segment.final:
            arrays |= self.judge(arm)(final.params)
        return arrays | (to_arrays(final, STATE) if keep else {})

    def changed(self, arm: Arm, parent: Arm, state: TrainState) -> TrainState:
        """Return the state of a parent as a child continues it: its ties have ended, or begun from the mean, or go on."""
        if arm.tied == parent.tied:
            return state
        before = self.ensemble(parent, 0, self.steps)
        ties, optimizer = before.ties, before.optimizer

        def of_member(member: TrainState) -> TrainState:
            if arm.tied:
                return TrainState(*tying.retie_switched(optimizer, *member[:2], ties, "mean"))
            policy, new = arm.change.policy, arm.change.new
            return TrainState(*tying.untie_switched(optimizer, *member[:2], ties, policy, new, member.use_states))

        changed = jax.jit(jax.vmap(jax.vmap(of_member)))(state)
        leaves = jax.tree.leaves(changed.opt_state)
        own = jax.eval_shape(jax.vmap(jax.vmap(self.ensemble(arm, 0, self.steps).optimizer.init)), changed.params)
        return changed._replace(opt_state=jax.tree.unflatten(jax.tree.structure(own), leaves))


def records_of(records: Mapping[str, Mapping[str, np.ndarray]], first: int) -> Arrays:
    """Return the records of one arm as `RECORDER_FIELD`, `[seed, record, ...]`, with steps counted from the run's start."""
    arrays = training.by_arm(records, {name: f"{name}_" for name in records})
    return {name: values + first if is_step(name) else values[0] for name, values in arrays.items()}


def is_step(field: str) -> bool:
    """Return whether a field, with or without `ARM/`, is the steps `[record]` of a recorder: `RECORDER_step`."""
    return STEP.fullmatch(field.rpartition("/")[2]) is not None


def stage_of(segment: Segment, seeds: Sequence[int]) -> str:
    """Return the name of the stage of a segment for a block of seeds."""
    words = "-".join(map(str, seeds))
    if len(words) > LONGEST:
        words = f"{seeds[0]}-to-{seeds[-1]}-{digest_of_json(list(seeds))[:12]}"
    return f"{segment.name}.seed-{words}"


def costs_of(parts: Sequence[Segment], seeds: Sequence[int]) -> dict[str, float]:
    """Return the cost of every stage of a block of seeds, in runs of one block."""
    return {stage_of(segment, seeds): float(segment.last - segment.first) for segment in parts}


def train_block(trainer: Trainer, parts: Sequence[Segment], seeds: Sequence[int], rates: Mapping[Class, Rate]) -> Arrays:
    """Train all segments of a block of seeds; return their arrays, joined over the segments of each arm, as `ARM/FIELD`.

    A state is dropped once no other segment needs it.
    """
    left: dict[str, Arrays] = {}
    needed = segments.parents_of(parts)
    for segment in parts:
        stage = stage_of(segment, seeds)
        members, parent = Members(seeds, [rates[segment.arm.rate_of]] * len(seeds)), segment.after
        keep = segment.name in needed

        def work(stage: str = stage, segment: Segment = segment, members: Members = members, keep: bool = keep) -> Arrays:
            before = None if segment.after is None else trainer.stages.state(stage_of(segment.after, seeds))
            return trainer.segment(stage, segment, members, before, keep)

        label = f"{segment.words}, {seeds_words(seeds)}"
        left[segment.name] = trainer.stages.once(stage, label, work, STATE if keep else None)
        if parent is not None and segment.name == segments.last_reader(parts, parent.name):
            trainer.stages.drop(stage_of(parent, seeds))
    return joined(parts, left)


def joined(parts: Sequence[Segment], left: Mapping[str, Arrays]) -> Arrays:
    """Return the arrays of each arm over its whole run, as `ARM/FIELD`.

    An arm that forks begins with the records of its parent. Of two records of one step, at the end of a segment and the
    beginning of the next, the later is kept: they measure the same state, but only the later one is on the batch of the step.
    """
    arrays: Arrays = {}
    for segment in parts:
        if not segment.final:
            continue
        line = [segment]
        while (before := line[0].after) is not None:
            line.insert(0, before)
        found = [left[each.name] for each in line]
        recorders = {name.removesuffix("_step") for name in found[-1] if is_step(name)}
        for field in found[-1]:
            if not field.startswith(tuple(f"{name}_" for name in recorders)):
                arrays[f"{segment.arm.name}/{field}"] = found[-1][field]
                continue
            axis = 0 if is_step(field) else 1
            whole = [np.delete(part[field], -1, axis) for part in found[:-1]] + [found[-1][field]]
            arrays[f"{segment.arm.name}/{field}"] = np.concatenate(whole, axis)
    return arrays


def join_blocks(blocks: Sequence[tuple[Sequence[int], Arrays]], seeds: Sequence[int]) -> Arrays:
    """Return the arrays of all blocks, joined along the seeds.

    blocks: the seeds of each block, and its arrays. seeds: those of the run; a field that some blocks lack has the first of
    them.
    """
    whole = {}
    for field in dict.fromkeys(field for _, arrays in blocks for field in arrays):
        having = [block for block, arrays in blocks if field in arrays]
        first = [seed for block in having for seed in block]
        assert first == list(seeds[: len(first)]), f"{field}: has the seeds {first}"
        values = [arrays[field] for _, arrays in blocks if field in arrays]
        if is_step(field):
            assert all(np.array_equal(values[0], other) for other in values), field
        whole[field] = values[0] if is_step(field) else np.concatenate(values)
    return whole


def train_seeds(
    launched: Launched,
    trainer: Trainer,
    rates: Mapping[Class, Rate],
    blocks: Callable[[Sequence[list[int]]], Sequence[tuple[list[int], Sequence[Segment]]]],
    test: Callable[[Arrays, list[int], Looks], list[dict[str, Any]]],
    console: Console,
    fewest: int = 1,
) -> tuple[Arrays, list[list[int]], Looks]:
    """Train all blocks of seeds, and with `--until decided` those of further looks.

    blocks: seeds of each part of the run -> blocks of seeds that train together, each with its segments. test: (arrays, seeds,
    looks) -> rows of the claims. fewest: as in `looks_done`.

    Returns the arrays of all seeds as `ARM/FIELD`, the seeds of each part, and the looks.
    """
    trained: dict[str, tuple[list[int], Arrays]] = {}
    test = console.stage("analysis")(test)
    while True:
        parts = parts_begun(launched)
        for block, whole in blocks(parts):
            name = f"{'-'.join(map(str, block))} {whole[0].arm.name}"
            if name not in trained:
                for stage, cost in costs_of(whole, block).items():
                    trainer.stages.add(stage, cost)
                trained[name] = block, train_block(trainer, whole, block, rates)
        seeds = [seed for part in parts for seed in part]
        looks = looks_done(launched, [len(part) for part in parts], fewest)
        arrays = join_blocks([*trained.values()], seeds)
        if value_of_first(lambda: next_seeds(launched, console, looks, lambda: test(arrays, seeds, looks))) is None:  # noqa: B023
            return arrays, parts, looks


def diverged(arrays: Arrays, losses: Mapping[str, np.ndarray], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return arm, seed and last step with a finite training loss of the models whose final loss is not finite.

    losses: arm -> final loss `[seed]`, of the first seeds.
    """
    return [
        {"arm": arm, "seed": seed, "step": _last_finite(arrays, arm, place)}
        for arm, values in losses.items()
        for place, seed in enumerate(seeds[: len(values)])
        if not np.isfinite(values[place])
    ]


def with_claims(
    arrays: Arrays, losses: Mapping[str, np.ndarray], seeds: Sequence[int], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the models that diverged (`diverged`) and the rows of the claims, by family, as in results.json."""
    non_finite = diverged(arrays, losses, seeds)
    return {
        "excluded_seeds": sorted({row["seed"] for row in non_finite}),
        "non_finite": non_finite,
        "claims": [row for family in rows.values() for row in family],
        "families": {family: [row["id"] for row in of_family] for family, of_family in rows.items()},
    }


def metrics_of(arrays: Arrays, seeds: Sequence[int]) -> Arrays:
    """Return the arrays of metrics.npz: `ARM.FIELD`, with a dot also for each slash in the name of an arm."""
    return {"seeds": np.array(seeds), **{name.replace("/", "."): values for name, values in arrays.items()}}


def _last_finite(arrays: Arrays, arm: str, place: int) -> int:
    """Return the last step at which a model's training loss was recorded as finite."""
    finite = np.isfinite(arrays[f"{arm}/train_loss"][place])
    steps = arrays[f"{arm}/train_step"][: len(finite)]
    return int(steps[finite][-1]) if finite.any() else 0


def tuning_segment(arm: Arm) -> Segment:
    """Return the only segment of an arm whose models choose learning rates."""
    return Segment(arm, Fraction(0), Fraction(1), None)


def tuning_blocks(rates: Sequence[Rate], seeds: Sequence[int], size: int) -> list[Members]:
    """Return the models that try every rate with every seed, in blocks of at most `size` that train together."""
    pairs = [(rate, seed) for rate in rates for seed in seeds]
    blocks = [pairs[first : first + size] for first in range(0, len(pairs), size)]
    return [Members([seed for _, seed in block], [rate for rate, _ in block]) for block in blocks]


def tuning_stage(kind: str, members: Members) -> str:
    """Return the name of the stage that tries rates: its first rate and seed, which no other stage has, and its last."""
    ends = [f"{rate_name(members.rates[end])}-{members.seeds[end]}" for end in (0, -1)]
    return f"rate.{kind}.{'.to.'.join(dict.fromkeys(ends))}"


def rate_name(rate: Rate) -> str:
    """Return a learning rate in the name of a stage, several separated by x."""
    return "x".join(f"{one:g}" for one in rate) if isinstance(rate, tuple) else f"{rate:g}"


class Tuning(NamedTuple):
    """The models that choose the learning rates of a class of arms, of which `block` train at a time.

    seeds: of more than four pairs, all are trained with the first one and the best four with the others. rates, factors: the
    learning rates, and the factors of the tables', that are tried first. rate_of: a rate and a factor -> those of a model.
    """

    kind: Class
    arm: Arm
    seeds: Sequence[int]
    block: int
    rates: Sequence[float]
    factors: Sequence[float] = (1.0,)
    rate_of: Callable[[float, float], Rate] = lambda rate, factor: (rate, factor)

    @property
    def first(self) -> Pair:
        """The first rate and the first factor."""
        return self.rates[0], self.factors[0]

    @property
    def halved(self) -> bool:
        """Whether the first seed chooses the pairs that are trained with the others."""
        return len(self.rates) * len(self.factors) > KEPT

    @property
    def others(self) -> str:
        """The name under which the cost of the other seeds is planned as long as the first one has not chosen their pairs."""
        return f"rate.{self.kind}"

    def blocks(self, pairs: Sequence[Pair], seeds: Sequence[int]) -> dict[str, Members]:
        """Return the models that try pairs with some of the seeds, in blocks, by the name of their stage."""
        found = tuning_blocks([self.rate_of(*pair) for pair in pairs], seeds, self.block)
        return {tuning_stage(self.kind, members): members for members in found}

    def costs(self) -> dict[str, float]:
        """Return the cost of the stages that are planned, in runs of one block."""
        pairs = list(itertools.product(self.rates, self.factors))
        planned = dict.fromkeys(self.blocks(pairs, self.seeds[:1] if self.halved else self.seeds), 1.0)
        return planned | ({self.others: float(-(-KEPT * len(self.seeds[1:]) // self.block))} if self.halved else {})


def tune(trainer: Trainer, tuning: Tuning) -> Tried:
    """Choose learning rates by the final loss on the tuning seeds (`choose_rates`)."""
    segment = tuning_segment(tuning.arm)
    parts: dict[Pair, list[Arrays]] = {}

    def train(pairs: Sequence[Pair], seeds: Sequence[int]) -> None:
        blocks = tuning.blocks(pairs, seeds)
        for stage in blocks:
            trainer.stages.add(stage, 1.0)
        members: list[Arrays] = []
        for number, (stage, block) in enumerate(blocks.items(), 1):
            label = f"learning rates, {tuning.kind}, {number} of {len(blocks)}"
            arrays = trainer.stages.once(stage, label, functools.partial(trainer.segment, stage, segment, block, None, False))
            members += [_of_member(arrays, place) for place in range(len(block.seeds))]
        for place, pair in enumerate(pairs):
            parts.setdefault(pair, []).extend(members[place * len(seeds) :][: len(seeds)])

    def losses_of(pairs: Sequence[Pair]) -> np.ndarray:
        losses = np.array([[trainer.recipe.final_loss(part)[0] for part in parts[pair]] for pair in pairs])
        return np.where(np.isfinite(losses), losses, np.inf)

    def first_at(pairs: Sequence[Pair]) -> np.ndarray:
        train(pairs, tuning.seeds[:1])
        return losses_of(pairs)[:, 0]

    def losses_at(pairs: Sequence[Pair]) -> np.ndarray:
        trainer.stages.costs.pop(tuning.others, None)
        train([pair for pair in pairs if pair not in parts], tuning.seeds)
        train([pair for pair in pairs if len(parts[pair]) < len(tuning.seeds)], tuning.seeds[1:])
        return losses_of(pairs)

    tried = choose_rates(tuning.rates, losses_at, tuning.factors, first_at, most=math.inf)
    best = parts[tried.pair]
    records = {field: values if is_step(field) else np.concatenate([part[field] for part in best])
               for field, values in best[0].items()}  # fmt: skip
    return tried._replace(records=records)


def _of_member(arrays: Arrays, place: int) -> Arrays:
    """Return the arrays of one member, `[1, ...]`; steps are those of all."""
    return {field: values if is_step(field) else values[place : place + 1] for field, values in arrays.items()}
