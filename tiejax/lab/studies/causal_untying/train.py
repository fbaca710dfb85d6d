"""Training of the segments of a run, each of them a stage, and of the models that choose the learning rates."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import training, tying
from tiejax.lab.runs.rates import Tried, choose_rate
from tiejax.lab.runs.stages import Stages
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.model import (
    TIE,
    Objective,
    held_out,
    objective_of,
    optimizer_of,
    recorders_of,
    ties_of,
)
from tiejax.lab.studies.causal_untying.plan import Arm, Segment
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.text.block_feed import BlockFeed
from tiejax.training.optimizer import with_rates
from tiejax.training.placement import map_members
from tiejax.training.state_arrays import from_arrays, to_arrays
from tiejax.training.step import TrainState

PyTree = Any
Arrays = dict[str, np.ndarray]
STATE = "state"  # prefix of the arrays of a segment's final state


class Members(NamedTuple):
    """Models of one arm that train together, one on each device: their seeds, and their learning rates."""

    seeds: Sequence[int]
    rates: Sequence[float]


class Trainer(NamedTuple):
    """What training needs: settings, text, the number of steps of a whole run, and the run's stages."""

    settings: Settings
    text: Text
    steps: int
    stages: Stages

    def ensemble(self, objective: Objective, arm: Arm, first: int, last: int) -> training.Ensemble:
        """Return the ensemble that trains an arm for the steps first, ..., last - 1 of a run, which it counts from 0."""
        return training.Ensemble(
            init=objective.init,
            sample=lambda seed_key, step, tokens: tokens,
            loss=objective.loss,
            optimizer=optimizer_of(self.settings, self.steps, arm),
            ties=ties_of(arm),
            arm_ties=np.array([[arm.tied] * len(ties_of(arm))], bool),
            steps=last - first,
            recorders=recorders_of(self.settings, objective, self.text),
            max_norm=self.settings.clip,
            source=BlockFeed(self.text.train, self.settings.batch_size, first),
            members=training.Unrolled(),
            precision=self.settings.matmul_precision,
        )

    def first_state(self, objective: Objective, arm: Arm, members: Members) -> TrainState:
        """Return the state of an arm's models before their first step, `[seed, 1, ...]`."""
        ensemble = self.ensemble(objective, arm._replace(tied=arm.equal), 0, self.steps)
        state = ensemble.start(members.seeds).state
        # Compiled together, the two uses of one random draw may differ by rounding; equal tables have the same bits.
        params = tying.copy_to_targets(state.params, state.params, ties_of(arm), arm.equal)
        state = with_rates(state._replace(params=params), jnp.asarray(members.rates)[:, None])
        if not arm.by_use:
            return state
        start = jax.vmap(jax.vmap(lambda params: ensemble.optimizer.init(tying.only_tied(params, [TIE]))))
        return state._replace(use_states=with_rates(start(params), jnp.asarray(members.rates)[:, None]))

    def segment(self, stage: str, segment: Segment, members: Members, before: Arrays | None, keep: bool) -> Arrays:
        """Train a segment; return its records `[seed, record]`, its final losses if it is the last one, and its state.

        stage: the name of the stage. before: the arrays of the segment that it continues. keep: return the state.
        """
        arm, objective = segment.arm, objective_of(self.settings, self.text, segment.arm)
        first, last = segment.steps(self.steps)
        parent = arm if segment.after is None else segment.after.arm
        if before is None:
            state = self.first_state(objective, parent, members)
        else:
            state = from_arrays(before, jax.eval_shape(lambda: self.first_state(objective, parent, members)), STATE)
        if parent is not arm:
            state = self.changed(arm, parent, state)
        ensemble = dataclasses.replace(self.ensemble(objective, arm, first, last), start_from=state)
        different = list(dict.fromkeys(members.rates))
        conditions = [different.index(rate) for rate in members.rates]
        trained = self.stages.train(stage, ensemble, members.seeds, conditions, first=first)
        arrays = records_of(trained.records, first)
        final = trained.members.state
        if segment.final:
            arrays |= self.judge(objective, final.params)
        return arrays | (to_arrays(final, STATE) if keep else {})

    def changed(self, arm: Arm, parent: Arm, state: TrainState) -> TrainState:
        """Return the state of a parent as a child continues it: its tie has ended, or begun again from the mean, or goes on."""
        if arm.tied == parent.tied:
            return state
        optimizer = optimizer_of(self.settings, self.steps, parent)

        def of_member(member: TrainState) -> TrainState:
            if arm.tied:
                return TrainState(*tying.retie_switched(optimizer, *member[:2], [TIE], "mean"))
            policy, new = arm.change.policy, arm.change.new
            return TrainState(*tying.untie_switched(optimizer, *member[:2], [TIE], policy, new, member.use_states))

        changed = jax.jit(jax.vmap(jax.vmap(of_member)))(state)
        leaves = jax.tree.leaves(changed.opt_state)
        own = jax.eval_shape(jax.vmap(jax.vmap(optimizer_of(self.settings, self.steps, arm).init)), changed.params)
        return changed._replace(opt_state=jax.tree.unflatten(jax.tree.structure(own), leaves))

    def judge(self, objective: Objective, params: PyTree) -> Arrays:
        """Return the sums of the final validation by bucket or kind of choice, `[seed, ...]` (see `Objective.sums`)."""
        batches = held_out(self.text, self.settings.batch_size, self.settings.final_blocks)
        return {name: values[:, 0] for name, values in map_members(objective.sums, params, batches).items()}


def records_of(records: Mapping[str, Mapping[str, np.ndarray]], first: int) -> Arrays:
    """Return the records of one arm as `RECORDER_FIELD`, `[seed, record, ...]`, with steps counted from the run's start."""
    arrays = training.by_arm(records, {"train": "train_", "validation": "validation_"})
    return {name: values + first if name.endswith("step") else values[0] for name, values in arrays.items()}


def stage_of(segment: Segment, seeds: Sequence[int]) -> str:
    """Return the name of the stage of a segment for a block of seeds."""
    return f"{segment.name}.seed-{'-'.join(map(str, seeds))}"


def costs_of(segments: Sequence[Segment], seeds: Sequence[int]) -> dict[str, float]:
    """Return the cost of every stage of a block of seeds, in runs of one block."""
    return {stage_of(segment, seeds): float(segment.last - segment.first) for segment in segments}


def train_block(
    trainer: Trainer, segments: Sequence[Segment], seeds: Sequence[int], rates: Mapping[plan.Class, float]
) -> Arrays:
    """Train all segments of a block of seeds; return their arrays, joined over the segments of each arm, as `ARM/FIELD`.

    A state is dropped once no other segment needs it.
    """
    left: dict[str, Arrays] = {}
    needed = plan.parents_of(segments)
    for segment in segments:
        stage = stage_of(segment, seeds)
        members, parent = Members(seeds, [rates[segment.arm.rate_of]] * len(seeds)), segment.after
        keep = segment.name in needed

        def work(stage: str = stage, segment: Segment = segment, members: Members = members, keep: bool = keep) -> Arrays:
            before = None if segment.after is None else trainer.stages.apart(stage_of(segment.after, seeds))
            return trainer.segment(stage, segment, members, before, keep)

        left[segment.name] = trainer.stages.once(stage, work, STATE if keep else None)
        if parent is not None and segment.name == plan.last_reader(segments, parent.name):
            trainer.stages.drop(stage_of(parent, seeds))
    return joined(segments, left)


def joined(segments: Sequence[Segment], left: Mapping[str, Arrays]) -> Arrays:
    """Return the arrays of each arm over its whole run, as `ARM/FIELD`.

    An arm that forks begins with the records of its parent. Of two records of one step, at the end of a segment and the
    beginning of the next, the later is kept: they measure the same state, but only the later one is on the batch of the step.
    """
    arrays: Arrays = {}
    for segment in segments:
        if not segment.final:
            continue
        line = [segment]
        while (before := line[0].after) is not None:
            line.insert(0, before)
        parts = [left[each.name] for each in line]
        for field in parts[-1]:
            if not field.startswith(("train_", "validation_")):
                arrays[f"{segment.arm.name}/{field}"] = parts[-1][field]
                continue
            axis = 0 if field.endswith("step") else 1
            whole = [np.delete(part[field], -1, axis) for part in parts[:-1]] + [parts[-1][field]]
            arrays[f"{segment.arm.name}/{field}"] = np.concatenate(whole, axis)
    return arrays


def tuning_arm(kind: plan.Class) -> Arm:
    """Return the arm whose models choose the learning rate of a class of arms."""
    return Arm(plan.TIED, True) if kind == "tied" else Arm(plan.NEVER_EQUAL, False)


def tuning_blocks(rates: Sequence[float], seeds: Sequence[int], size: int) -> list[Members]:
    """Return the models that try every rate with every seed, in blocks of at most `size` that train together."""
    pairs = [(rate, seed) for rate in rates for seed in seeds]
    blocks = [pairs[first : first + size] for first in range(0, len(pairs), size)]
    return [Members([seed for _, seed in block], [rate for rate, _ in block]) for block in blocks]


def tuning_stage(kind: plan.Class, members: Members) -> str:
    """Return the name of the stage that tries rates: its first rate and seed, which no other stage has, and its last."""
    ends = [f"{members.rates[end]:g}-{members.seeds[end]}" for end in (0, -1)]
    return f"rate.{kind}.{'.to.'.join(dict.fromkeys(ends))}"


def tune(trainer: Trainer, kind: plan.Class, block: int) -> Tried:
    """Choose the learning rate of a class of arms on the tuning seeds, `block` models at a time."""
    segment = Segment(tuning_arm(kind), Fraction(0), Fraction(1), None)
    seeds = trainer.settings.tuning_seeds

    parts: dict[float, list[Arrays]] = {}

    def losses_at(rates: Sequence[float]) -> np.ndarray:
        losses = []
        for members in tuning_blocks(rates, seeds, block):
            stage = tuning_stage(kind, members)
            trainer.stages.add(stage, 1.0)
            arrays = trainer.stages.once(stage, functools.partial(trainer.segment, stage, segment, members, None, False))
            losses.append(arrays["nats"].sum(-1) / arrays["count"].sum(-1))
            for place, rate in enumerate(members.rates):
                parts.setdefault(rate, []).append({field: values if field.endswith("step") else values[place : place + 1]
                                                   for field, values in arrays.items()})  # fmt: skip
        found = np.concatenate(losses).reshape(len(rates), len(seeds))
        return np.where(np.isfinite(found), found, np.inf)

    tried = choose_rate(trainer.settings.rates, losses_at)
    best = parts[float(tried.rates[tried.best])]
    records = {field: values if field.endswith("step") else np.concatenate([part[field] for part in best])
               for field, values in best[0].items()}  # fmt: skip
    return tried._replace(records=records)
