"""One model whose layers are tied, by a fixed map or by an agent, from its first step to the evaluation of its best."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tiejax import tying
from tiejax.training import q_learning
from tiejax.training.checkpoint import Checkpoints
from tiejax.training.keys import stream
from tiejax.training.layered import Layered, LayeredState, height_of

PyTree = Any
Records = dict[str, dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What the models of a run have in common.

    k: batches an action, and in a group of batches. rule, start, gradient: of ties, as in `tying.layers`. reward,
    epsilon_floor: of the agent. validate_every: steps between validations.
    """

    layers: int
    steps: int
    k: int
    rule: tying.Rule
    start: tying.Start
    gradient: Literal["all", "owner"]
    storage: tying.Storage
    reward: q_learning.Reward
    epsilon_floor: float
    validate_every: int


class Job(NamedTuple):
    """One model. chooser: an agent that learns, one that chooses at random, or none, and then `owner` is its map throughout."""

    method: str
    seed: int
    chooser: Literal["learner", "random"] | None
    owner: tying.Owner | None


class Data(NamedTuple):
    """What a job is trained on and judged by.

    group: (seed, number) -> k + 1 batches, of which the last is for the reward. selection: batches that choose the best step.
    held_out: split -> its batches. A batch comes with its weight in a mean.
    """

    group: Callable[[int, int], Sequence[Any]]
    selection: Sequence[tuple[Any, float]]
    held_out: Mapping[str, Sequence[tuple[Any, float]]]


class Now(NamedTuple):
    """What a checkpoint holds beside the records: arrays of the same shapes whatever is tied."""

    step: np.ndarray
    actions: np.ndarray
    ties: tying.LayerTies
    state: LayeredState
    learner: q_learning.Learner
    best_loss: np.ndarray
    best_step: np.ndarray
    best_owner: np.ndarray
    best_params: PyTree


class Log:
    """Records by group and name, a row at a time."""

    def __init__(self, records: Mapping[str, Mapping[str, np.ndarray]] | None = None) -> None:
        self._rows: dict[str, dict[str, list[Any]]] = {
            group: {name: list(values) for name, values in fields.items()} for group, fields in (records or {}).items()
        }

    def add(self, group: str, **fields: Any) -> None:
        rows = self._rows.setdefault(group, {name: [] for name in fields})
        for name, value in fields.items():
            rows[name].append(value)

    def known(self, group: str, name: str) -> list[Any]:
        return self._rows.get(group, {}).get(name, [])

    def arrays(self) -> Records:
        return {group: {name: np.array(values) for name, values in fields.items()} for group, fields in self._rows.items()}


def run_job(
    layered: Layered,
    protocol: Protocol,
    job: Job,
    data: Data,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    stop_requested: Callable[[], bool] = lambda: False,
    on_steps: Callable[[int, float], None] = lambda steps, seconds: None,
    checkpoint_s: float = 30.0,
) -> tuple[Records, PyTree] | None:
    """Train a model and return its records and the parameters of its best step, on the host; None if it was stopped.

    The records: by `step` (loss, distinct layers, seconds), by `validation`, by `action` of an agent, by `size` of the stack,
    and `final` (step, map and losses of the best, the last map). on_steps: told how many steps more, in how many seconds.
    """
    root = jax.random.key(job.seed)
    now, log = _begin(layered, protocol, job, root), Log()
    if resume and checkpoints is not None and (found := checkpoints.restore(now)) is not None:
        _, now, records = found
        log = Log(records)
        if int(now.step):
            on_steps(int(now.step), 0.0)
    step, actions, ties = int(now.step), int(now.actions), tying.LayerTies(*now.ties)
    learner = layered.place(now.learner)
    state = layered.put(now.state, ties.owner)
    best_loss, best_step, best_owner, best_params = float(now.best_loss), int(now.best_step), now.best_owner, now.best_params
    saved_at = time.perf_counter()

    def all_of_it() -> Now:
        numbers = np.asarray(np.int64(step)), np.asarray(np.int64(actions))
        best = np.asarray(np.float64(best_loss)), np.asarray(np.int64(best_step)), best_owner, best_params
        return Now(*numbers, ties, layered.fetch(state, ties.owner), jax.device_get(learner), *best)

    def validate() -> None:
        nonlocal best_loss, best_step, best_owner, best_params
        loss = _mean_loss(layered, state.params, data.selection, uses)
        log.add("validation", step=step, loss=loss)
        if loss < best_loss:
            best_loss, best_step, best_owner = loss, step, ties.owner.copy()
            best_params = layered.fetch_params(state.params, ties.owner)

    uses = tying.uses(ties, protocol.storage, protocol.gradient, protocol.rule)
    if job.chooser is not None:
        _compile_agent(layered, learner, ties)
    if step == 0:
        layered.visit(state, data.group(job.seed, 0)[0], root, uses)
        _note_size(log, layered, state)
        validate()
    while step < protocol.steps:
        batches = data.group(job.seed, step // protocol.k)
        # What the agent does is part of the time that it takes.
        began, compiled_s, chosen = time.perf_counter(), layered.compile_s, None
        if job.chooser is not None:
            episode, place = divmod(actions, protocol.layers - 1)
            layer, before = place + 1, ties
            epsilon = 1.0 if job.chooser == "random" else q_learning.epsilon_at(episode, protocol.epsilon_floor)
            key = jax.random.fold_in(stream(root, "choices"), actions)
            chosen = int(_choose(learner.network, *layered.place((ties.said, np.int32(layer), np.float32(epsilon), key))))
            ties = tying.choose(ties, layer, chosen, protocol.rule)
            if not np.array_equal(before.owner, ties.owner):
                state = layered.move(state, tying.move(before.owner, ties.owner, protocol.storage))
            uses = tying.uses(ties, protocol.storage, protocol.gradient, protocol.rule)
        losses, paused_s = [], 0.0
        number = min(protocol.k, protocol.steps - step)
        for batch in batches[:number]:
            key = jax.random.fold_in(stream(root, "dropout"), step)
            state, loss = layered.step(state, batch, key, uses)
            losses.append(loss)
            step += 1
            if step % protocol.validate_every == 0 or step == protocol.steps:
                jax.block_until_ready(state)
                paused, so_far = time.perf_counter(), layered.compile_s
                validate()
                paused_s += time.perf_counter() - paused
                compiled_s += layered.compile_s - so_far
        q_loss = np.float32(np.nan)
        if chosen is not None:
            reward = q_learning.reward_of(protocol.reward, layered.loss(state.params, batches[protocol.k], uses))
            transition = q_learning.Transition(
                *layered.place((before.said, np.int32(layer), np.int32(chosen), reward, ties.said))
            )
            if job.chooser == "learner":
                learner, q_loss = _learn(learner, transition)
        jax.block_until_ready((state, q_loss))
        seconds = time.perf_counter() - began - paused_s - (layered.compile_s - compiled_s)
        for loss in losses:
            log.add("step", loss=np.float32(loss), distinct=len(np.unique(ties.owner)), time=seconds / number)
        _note_size(log, layered, state)
        if chosen is not None:
            told = {"reward": np.float32(reward), "q_loss": np.float32(q_loss), "epsilon": epsilon}
            log.add("action", episode=episode, layer=layer, action=chosen, owner=ties.owner, **told)
            actions += 1
        on_steps(number, seconds)
        stopping = stop_requested()
        if checkpoints is not None and (stopping or step == protocol.steps or time.perf_counter() - saved_at > checkpoint_s):
            checkpoints.save(step, all_of_it(), log.arrays())
            saved_at = time.perf_counter()
        if stopping and step < protocol.steps:
            return None
    # Whose use trains what makes no difference to an evaluation.
    of_best = tying.LayerTies(best_owner, np.ones(protocol.layers, bool), best_owner)
    uses = tying.uses(of_best, protocol.storage, "all", "resolved")
    params = layered.put_params(best_params, best_owner)
    held_out = {split: _mean_loss(layered, params, batches, uses) for split, batches in data.held_out.items()}
    log.add("final", best_step=best_step, best_owner=best_owner, final_owner=ties.owner, **held_out)
    return log.arrays(), best_params


_choose, _learn = jax.jit(q_learning.choose), jax.jit(q_learning.learn)


def _compile_agent(layered: Layered, learner: q_learning.Learner, ties: tying.LayerTies) -> None:
    """Let the agent's functions be compiled, which is not part of anybody's time."""
    one, key = np.int32(1), jax.random.key(0)
    jax.block_until_ready(_choose(learner.network, *layered.place((ties.said, one, np.float32(1), key))))
    transition = q_learning.Transition(*layered.place((ties.said, one, one, np.float32(0), ties.said)))
    jax.block_until_ready(_learn(learner, transition))


def _mean_loss(layered: Layered, params: PyTree, batches: Sequence[tuple[Any, float]], uses: tying.Uses) -> float:
    losses = [layered.loss(params, batch, uses) for batch, _ in batches]
    return float(np.average([float(loss) for loss in losses], weights=[weight for _, weight in batches]))


def _note_size(log: Log, layered: Layered, state: LayeredState) -> None:
    height = height_of(state.params)
    if height not in log.known("size", "height"):
        log.add("size", height=height, **layered.sizes[height]._asdict())


def _begin(layered: Layered, protocol: Protocol, job: Job, root: jax.Array) -> Now:
    ties = tying.start_ties(protocol.layers, protocol.start, protocol.rule)
    if job.owner is not None:
        ties = tying.LayerTies(job.owner, np.isin(np.arange(protocol.layers), job.owner), job.owner)
    state = layered.fetch(layered.start(root, ties.owner), ties.owner)
    learner = jax.device_get(q_learning.start(stream(root, "agent"), protocol.layers))
    zero, nothing = np.asarray(np.int64(0)), np.asarray(np.float64(np.inf))
    return Now(zero, zero, ties, state, learner, nothing, zero, ties.owner, state.params)
