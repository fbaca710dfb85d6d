"""One model whose layers are tied, by a fixed map or by an agent, from its first step to the evaluation of its best."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tiejax import tying
from tiejax.studies.layer_tying import q_learning
from tiejax.training.checkpoint import Checkpoints
from tiejax.training.keys import stream
from tiejax.training.layered import Layered, LayeredState, stack_size_of

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


class Best(NamedTuple):
    """The step with the least validation loss so far, with its map and its parameters, on the host."""

    loss: np.ndarray
    step: np.ndarray
    owner: np.ndarray
    params: PyTree


class Now(NamedTuple):
    """What a checkpoint holds beside the records: arrays of the same shapes whatever is tied."""

    step: np.ndarray
    actions: np.ndarray
    ties: tying.LayerTies
    state: LayeredState
    learner: q_learning.Learner
    best: Best


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


class _Clock:
    """The seconds since it was made, without those of compilation and of what is done in `paused`."""

    def __init__(self, layered: Layered) -> None:
        self._layered, self._began, self._left_out = layered, self._working(layered), 0.0

    @staticmethod
    def _working(layered: Layered) -> float:
        return time.perf_counter() - layered.compile_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        began = self._working(self._layered)
        yield
        self._left_out += self._working(self._layered) - began

    @property
    def seconds(self) -> float:
        return self._working(self._layered) - self._began - self._left_out


@dataclasses.dataclass
class _Model:
    """A model on its way: what it has learnt, its ties, its agent, its best so far, its records."""

    layered: Layered
    protocol: Protocol
    job: Job
    data: Data
    log: Log
    step: int
    actions: int
    ties: tying.LayerTies
    state: LayeredState
    learner: q_learning.Learner
    best: Best

    @classmethod
    def of(cls, layered: Layered, protocol: Protocol, job: Job, data: Data, now: Now, log: Log) -> "_Model":
        """Return the model that a checkpoint holds, on its device."""
        ties = tying.LayerTies(*now.ties)
        state, learner = layered.to_device(now.state, ties.owner), layered.place(now.learner)
        return cls(layered, protocol, job, data, log, int(now.step), int(now.actions), ties, state, learner, Best(*now.best))

    @property
    def now(self) -> Now:
        fetched = self.layered.to_host(self.state, self.ties.owner), jax.device_get(self.learner)
        return Now(np.asarray(np.int64(self.step)), np.asarray(np.int64(self.actions)), self.ties, *fetched, self.best)

    @property
    def root(self) -> jax.Array:
        return jax.random.key(self.job.seed)

    @property
    def wiring(self) -> tying.Wiring:
        return tying.wiring(self.ties, self.protocol.storage, self.protocol.gradient, self.protocol.rule)

    def prepare(self) -> None:
        """Compile what is known to be needed, and judge the model before its first step."""
        if self.job.chooser is not None:
            _compile_agent(self.layered, self.learner, self.ties)
        if self.step == 0:
            self.layered.visit(self.state, self.data.group(self.job.seed, 0)[0], self.root, self.wiring)
            self._note_size()
            self.validate()

    def group(self) -> tuple[int, float]:
        """Let the agent act, train k steps, let the agent learn; return the number of steps and their seconds."""
        batches = self.data.group(self.job.seed, self.step // self.protocol.k)
        clock = _Clock(self.layered)  # what the agent does is part of the time that it takes
        acted = self.act() if self.job.chooser is not None else None
        losses = self.train(batches[: min(self.protocol.k, self.protocol.steps - self.step)], clock)
        reward, q_loss = self.learn(acted, batches[self.protocol.k]) if acted is not None else (None, None)
        # A random agent makes no use of its reward, which is only recorded: that is no part of its time.
        jax.block_until_ready((self.state, q_loss))
        seconds, distinct = clock.seconds, len(np.unique(self.ties.owner))
        for loss in losses:
            self.log.add("step", loss=np.float32(loss), distinct=distinct, time=seconds / len(losses))
        self._note_size()
        if acted is not None:
            told = {"reward": np.float32(reward), "q_loss": np.float32(q_loss), "owner": self.ties.owner}
            self.log.add("action", episode=acted.episode, layer=acted.layer, action=acted.action, epsilon=acted.epsilon, **told)
        return len(losses), seconds

    def act(self) -> "_Acted":
        """Choose for the next layer in turn, and change ties."""
        episode, place = divmod(self.actions, self.protocol.layers - 1)
        layer, before = place + 1, self.ties
        random = self.job.chooser == "random"
        epsilon = 1.0 if random else q_learning.epsilon_at(episode, self.protocol.epsilon_floor)
        key = jax.random.fold_in(stream(self.root, "choices"), self.actions)
        told = self.layered.place((before.observation, np.int32(layer), np.float32(epsilon), key))
        action = int(_choose(self.learner.network, *told))
        self.ties = tying.choose(before, layer, action, self.protocol.rule)
        if not np.array_equal(before.owner, self.ties.owner):
            move = tying.move(before.owner, self.ties.owner, self.protocol.storage)
            self.state = self.layered.move(self.state, move)
        self.actions += 1
        return _Acted(episode, layer, action, epsilon, before.observation)

    def train(self, batches: Sequence[Any], clock: _Clock) -> list[jax.Array]:
        """Return the losses of these batches, one step on each."""
        losses, wiring = [], self.wiring
        for batch in batches:
            key = jax.random.fold_in(stream(self.root, "dropout"), self.step)
            self.state, loss = self.layered.step(self.state, batch, key, wiring)
            losses.append(loss)
            self.step += 1
            if self.step % self.protocol.validate_every == 0 or self.step == self.protocol.steps:
                jax.block_until_ready(self.state)
                with clock.paused():
                    self.validate()
        return losses

    def learn(self, acted: "_Acted", batch: Any) -> tuple[jax.Array, Any]:
        """Return the reward, of a batch that nobody is trained on, and the squared error that the agent learns from."""
        reward = q_learning.reward_of(self.protocol.reward, self.layered.loss(self.state.params, batch, self.wiring))
        told = acted.observation, np.int32(acted.layer), np.int32(acted.action), reward, self.ties.observation
        if self.job.chooser == "random":
            return reward, np.float32(np.nan)
        self.learner, q_loss = _learn(self.learner, q_learning.Transition(*self.layered.place(told)))
        return reward, q_loss

    def validate(self) -> None:
        """Record the loss of the blocks that choose the best step, and keep the model if it is the best so far."""
        loss = _mean_loss(self.layered, self.state.params, self.data.selection, self.wiring)
        self.log.add("validation", step=self.step, loss=loss)
        if loss < self.best.loss:
            params = self.layered.params_to_host(self.state.params, self.ties.owner)
            self.best = Best(np.asarray(loss), np.asarray(np.int64(self.step)), self.ties.owner.copy(), params)

    def judge(self) -> None:
        """Record the losses of the best step on all that was held out, and the maps."""
        best = self.best
        params = self.layered.params_to_device(best.params, best.owner)
        # Whose use trains what makes no difference here.
        ties = tying.LayerTies(best.owner, np.ones(self.protocol.layers, bool), best.owner)
        wiring = tying.wiring(ties, self.protocol.storage, "all", "resolved")
        losses = {split: _mean_loss(self.layered, params, batches, wiring) for split, batches in self.data.held_out.items()}
        self.log.add("final", best_step=int(best.step), best_owner=best.owner, final_owner=self.ties.owner, **losses)

    def _note_size(self) -> None:
        stack_size = stack_size_of(self.state.params)
        if stack_size not in self.log.known("size", "stack_size"):
            self.log.add("size", stack_size=stack_size, **self.layered.sizes[stack_size]._asdict())


class _Acted(NamedTuple):
    """What an agent has done; observation: the state that it was told before."""

    episode: int
    layer: int
    action: int
    epsilon: float
    observation: tying.Owner


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
    now, log = _begin(layered, protocol, job), Log()
    if resume and checkpoints is not None and (found := checkpoints.restore(now)) is not None:
        step, now, records = found
        log = Log(records)
        on_steps(step, 0.0)
    model = _Model.of(layered, protocol, job, data, now, log)
    model.prepare()
    saved_at = time.perf_counter()
    while model.step < protocol.steps:
        on_steps(*model.group())
        stopping, ended = stop_requested(), model.step == protocol.steps
        if checkpoints is not None and (stopping or ended or time.perf_counter() - saved_at > checkpoint_s):
            checkpoints.save(model.step, model.now, log.arrays())
            saved_at = time.perf_counter()
        if stopping and not ended:
            return None
    model.judge()
    return log.arrays(), model.best.params


_choose, _learn = jax.jit(q_learning.choose), jax.jit(q_learning.learn)


def _compile_agent(layered: Layered, learner: q_learning.Learner, ties: tying.LayerTies) -> None:
    """Let the agent's functions be compiled, which is not part of anybody's time."""
    one, key = np.int32(1), jax.random.key(0)
    jax.block_until_ready(_choose(learner.network, *layered.place((ties.observation, one, np.float32(1), key))))
    transition = q_learning.Transition(*layered.place((ties.observation, one, one, np.float32(0), ties.observation)))
    jax.block_until_ready(_learn(learner, transition))


def _mean_loss(layered: Layered, params: PyTree, batches: Sequence[tuple[Any, float]], wiring: tying.Wiring) -> float:
    losses = [layered.loss(params, batch, wiring) for batch, _ in batches]
    return float(np.average([float(loss) for loss in losses], weights=[weight for _, weight in batches]))


def _begin(layered: Layered, protocol: Protocol, job: Job) -> Now:
    """Return a model before its first step."""
    root, ties = jax.random.key(job.seed), tying.start_ties(protocol.layers, protocol.start, protocol.rule)
    if job.owner is not None:
        ties = tying.LayerTies(job.owner, np.isin(np.arange(protocol.layers), job.owner), job.owner)
    state = layered.to_host(layered.start(root, ties.owner), ties.owner)
    learner = jax.device_get(q_learning.start(stream(root, "agent"), protocol.layers))
    zero = np.asarray(np.int64(0))
    return Now(zero, zero, ties, state, learner, Best(np.asarray(np.inf), zero, ties.owner, state.params))
