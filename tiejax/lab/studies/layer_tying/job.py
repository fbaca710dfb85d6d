"""Training of one model with tied layers, by a fixed map or by an agent, up to the evaluation of its best step.

A model trains in groups of k steps. With an agent every group begins with an action, which changes the ties, and ends with the
reward, computed from the loss of one more batch, on which the model is not trained.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import tying
from tiejax.lab.studies.layer_tying import q_learning
from tiejax.lab.studies.layer_tying.q_learning import Action, Agent
from tiejax.lab.studies.layer_tying.records import Log, Records
from tiejax.lab.studies.layer_tying.settings import AFTER_AGENT, AGENTS, Settings
from tiejax.training.checkpoint import Checkpoints
from tiejax.training.keys import stream
from tiejax.training.layered import Layered
from tiejax.training.optimizer import warmed_up
from tiejax.training.stack import LayeredState
from tiejax.tying.layer_ties import fixed_wiring

PyTree = Any
MOST_AT_ONCE = 32  # groups
RANDOM_MAPS = 1004  # a random stream used for nothing else


class Job(NamedTuple):
    """One model to train.

    agent: a learning agent, a random one, or None; without an agent, `owner` is the fixed map. params: the first parameters, on
    the host with a slot for every layer (default: random ones).
    """

    method: str
    seed: int
    agent: Literal["learner", "random"] | None
    owner: tying.Owner | None
    params: PyTree = None


class Data(NamedTuple):
    """The batches of a job.

    group: (seed, number) -> k + 1 batches, the last one for the reward. selection: batches that select the best step. held_out:
    the batches of each held-out split. Evaluation batches come with their weights in the mean.
    """

    group: Callable[[int, int], Sequence[Any]]
    selection: Sequence[tuple[Any, float]]
    held_out: Mapping[str, Sequence[tuple[Any, float]]]


def job_of(settings: Settings, method: str, seed: int, agent_records: Records | None) -> Job:
    """Return the job of a method and a seed; agent_records: records of the agent of the seed, for methods that need them."""
    owner = settings.fixed_map(method)
    if method in AFTER_AGENT:
        best = None if agent_records is None else agent_records["final"]["best_owner"][0]
        distinct = settings.distinct if best is None else len(np.unique(best))
        assert distinct is not None
        if method == "random-map":
            owner = tying.random_map(settings.layers, distinct, np.random.default_rng([seed, RANDOM_MAPS]))
        else:
            assert best is not None
            owner = tying.owner_from_groups(best)
    return Job(method, seed, AGENTS.get(method), owner)


def run_job(
    layered: Layered,
    settings: Settings,
    job: Job,
    data: Data,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    stop_requested: Callable[[], bool] = lambda: False,
    on_steps: Callable[[int, float], None] = lambda steps, seconds: None,
    on_saved: Callable[[Records], None] = lambda records: None,
) -> tuple[Records, PyTree] | None:
    """Train a model; return its records (see `Log`) and the parameters of its best step on the host, or None if stopped.

    on_steps: progress callback, called with a number of new steps and the seconds they took. on_saved: called with the records
    of every checkpoint, including the one from which training resumes.
    """
    saved, log = first_state(layered, settings, job), Log()
    if resume and checkpoints is not None and (restored := checkpoints.restore(saved)) is not None:
        step, saved, records = restored
        log = Log(records)
        on_steps(step, 0.0)
        on_saved(log.arrays())
    model = _Model(layered, settings, job, data, saved, log)
    model.prepare()
    saved_at = time.perf_counter()
    while model.step < model.steps:
        on_steps(*(model.groups() if model.agent is None else model.group(model.agent)))
        stopping, ended = stop_requested(), model.step == model.steps
        if checkpoints is not None and (stopping or ended or time.perf_counter() - saved_at > settings.checkpoint_every):
            checkpoints.save(model.step, model.to_host(), log.arrays())
            on_saved(log.arrays())
            saved_at = time.perf_counter()
        if stopping and not ended:
            return None
    model.evaluate_best()
    return log.arrays(), model.best.params


class Best(NamedTuple):
    """The step with the lowest validation loss so far, with its owner map and its parameters, on the host."""

    loss: np.ndarray
    step: np.ndarray
    owner: np.ndarray
    params: PyTree


class SavedState(NamedTuple):
    """The content of a checkpoint except records; shapes do not depend on the ties."""

    step: np.ndarray
    actions: np.ndarray
    ties: tying.LayerTies
    state: LayeredState
    learner: q_learning.Learner | None
    best: Best


def first_state(layered: Layered, settings: Settings, job: Job) -> SavedState:
    """Return the initial state of a model."""
    root, ties = jax.random.key(job.seed), tying.start_ties(settings.layers, settings.start, settings.ties)
    if job.owner is not None:
        ties = tying.LayerTies(job.owner, np.isin(np.arange(settings.layers), job.owner), job.owner)
    state = layered.to_host(layered.start(root, ties.owner), ties.owner)
    if job.params is not None:
        state = state._replace(params=job.params)
    learner = None if job.agent is None else jax.device_get(q_learning.start(stream(root, "agent"), settings.layers))
    zero = np.asarray(np.int64(0))
    return SavedState(zero, zero, ties, state, learner, Best(np.asarray(np.inf), zero, ties.owner, state.params))


class _Model:
    """A model in training: its state, ties, agent, best step and records."""

    def __init__(self, layered: Layered, settings: Settings, job: Job, data: Data, saved: SavedState, log: Log) -> None:
        self.layered, self.settings, self.job, self.data, self.log = layered, settings, job, data, log
        self.step, self.ties, self.best, self.rates = int(saved.step), saved.ties, saved.best, rates_of(settings)
        self.steps = len(self.rates)
        self.state = layered.to_device(saved.state, saved.ties.owner)
        self.root = jax.random.key(job.seed)
        self.dropout = stream(self.root, "dropout")  # of which each step's key for dropout is made
        self.agent: Agent | None = None
        if job.agent is not None and saved.learner is not None:
            floor, learner = settings.epsilon_floor, layered.place(saved.learner)
            self.agent = Agent(job.agent, settings.layers, floor, self.root, layered.place, learner, int(saved.actions))
        self.at_once, self.validation_s = 1, 0.0  # groups, and seconds of validations

    def to_host(self) -> SavedState:
        """Return the model as a checkpoint stores it."""
        actions, learner = (self.agent.actions, jax.device_get(self.agent.learner)) if self.agent is not None else (0, None)
        step, number = (np.asarray(np.int64(count)) for count in (self.step, actions))
        return SavedState(step, number, self.ties, self.layered.to_host(self.state, self.ties.owner), learner, self.best)

    @property
    def wiring(self) -> tying.Wiring:
        return tying.wiring(self.ties, self.settings.storage, self.settings.gradient, self.settings.ties)

    def clock(self) -> float:
        """Return the time in seconds, without compilation and validations."""
        return time.perf_counter() - self.layered.compile_s - self.validation_s

    def prepare(self) -> None:
        """Compile the agent, step and loss, and validate a new model before its first step."""
        if self.agent is not None:
            self.agent.compile(self.ties.observation)
        if self.step == 0:
            self.layered.compile_for(self.state, self.batches()[0], self.root, self.wiring)
            self._record_size()
            self.validate()

    def batches(self, later: int = 0) -> Sequence[Any]:
        """Return the batches of the next group, or of one `later` groups after it; the last one is for the reward."""
        return self.data.group(self.job.seed, self.step // self.settings.k + later)

    def groups(self) -> tuple[int, float]:
        """Train `at_once` groups, at most until a validation, without waiting for the devices in between.

        Returns the number of steps and their seconds. The batches are drawn before, as those of an agent are.
        """
        k, losses = self.settings.k, list[jax.Array]()
        next_validation = self.step - self.step % self.settings.validate_every + self.settings.validate_every
        steps = min(self.steps, next_validation) - self.step
        batches = [self.batches(later) for later in range(min(self.at_once, math.ceil(steps / k)))]
        began = self.clock()
        for some in batches:
            losses += self.train(some[: min(k, self.steps - self.step)])
        jax.block_until_ready(self.state)
        seconds = self.clock() - began
        self.at_once = groups_at_once(seconds / len(batches))
        self._record_steps(losses, seconds)
        return len(losses), seconds

    def group(self, agent: Agent) -> tuple[int, float]:
        """Act, train k steps, and learn from the reward; return the number of steps and their seconds."""
        k, steps_left = self.settings.k, self.steps - self.step
        batches = self.batches()
        began = self.clock()  # includes the agent
        action = self.act(agent)
        losses = self.train(batches[: min(k, steps_left)])
        # The reward's batch is not trained on.
        reward = q_learning.reward_of(self.settings.reward, self.layered.loss(self.state.params, batches[k], self.wiring))
        q_loss = agent.learn(action, reward, self.ties.observation)
        # Do not wait for the reward of a random agent, which is only recorded, so that it does not count as training time.
        jax.block_until_ready((self.state, q_loss))
        seconds = self.clock() - began
        self._record_steps(losses, seconds)
        self._record_size()
        values = {"reward": reward, "q_loss": q_loss, "value": action.value}
        recorded = {name: np.float32(value) for name, value in values.items()}
        place = {"episode": action.episode, "layer": action.layer, "action": action.choice, "epsilon": action.epsilon}
        self.log.add("action", **place, **recorded, owner=self.ties.owner)
        return len(losses), seconds

    def act(self, agent: Agent) -> Action:
        """Let the agent choose for the next layer in turn, and change the ties accordingly."""
        before, action = self.ties, agent.act(self.ties.observation)
        self.ties = tying.choose(before, action.layer, action.choice, self.settings.ties)
        if not np.array_equal(before.owner, self.ties.owner):
            move = tying.move(before.owner, self.ties.owner, self.settings.storage)
            self.state = self.layered.move(self.state, move)
        return action

    def train(self, batches: Sequence[Any]) -> list[jax.Array]:
        """Take one step on each batch; return their losses."""
        losses: list[jax.Array] = []
        wiring = self.wiring
        while len(losses) < len(batches):
            until_validation = self.settings.validate_every - self.step % self.settings.validate_every
            some = batches[len(losses) : len(losses) + until_validation]
            keys = [jax.random.fold_in(self.dropout, self.step + number) for number in range(len(some))]
            self.state, new_losses = self.layered.steps(
                self.state, some, keys, wiring, self.rates[self.step : self.step + len(some)]
            )
            losses += new_losses
            self.step += len(some)
            if self.step % self.settings.validate_every == 0 or self.step == self.steps:
                jax.block_until_ready(self.state)
                self.validate()
        return losses

    def validate(self) -> None:
        """Record the loss on the selection blocks, and save the model on the host if it is the best so far."""
        began = self.clock()
        loss = mean_loss(self.layered, self.state.params, self.data.selection, self.wiring)
        self.log.add("validation", step=self.step, loss=loss)
        if loss < self.best.loss:
            params = self.layered.to_host(LayeredState(self.state.params, None, None), self.ties.owner).params
            self.best = Best(np.asarray(loss), np.asarray(np.int64(self.step)), self.ties.owner.copy(), params)
        self.validation_s += self.clock() - began

    def evaluate_best(self) -> None:
        """Record the losses of the best step on all held-out splits, and the owner maps."""
        best = self.best
        params = self.layered.to_device(LayeredState(best.params, None, None), best.owner).params
        # Nothing is trained here, so the rule of the ties makes no difference.
        wiring = fixed_wiring(best.owner, self.settings.storage)
        losses = {split: mean_loss(self.layered, params, batches, wiring) for split, batches in self.data.held_out.items()}
        self.log.add("final", best_step=int(best.step), best_owner=best.owner, final_owner=self.ties.owner, **losses)

    def _record_steps(self, losses: list[jax.Array], seconds: float) -> None:
        distinct = len(np.unique(self.ties.owner))
        for loss in jax.device_get(losses):
            self.log.add("step", loss=loss, distinct=distinct, time=seconds / len(losses))

    def _record_size(self) -> None:
        stack_size = self.layered.stack_size(self.state.params)
        if stack_size not in self.log.values("size", "stack_size"):
            self.log.add("size", stack_size=stack_size, **self.layered.sizes[stack_size]._asdict())


def rates_of(settings: Settings) -> np.ndarray:
    """Return the learning rate of every step, float32 `[steps]`, with two rates also that of the tables, `[steps, 2]`.

    It rises linearly from 0 in the first `warm_up` steps, then stays at `rate` or, with the schedule `cosine`, falls to 0 at
    the end as rate / 2 (1 + cos(pi x)), where x is the share of the remaining steps that is done.
    """
    assert settings.steps is not None
    rate = settings.learning_rate
    rest = optax.constant_schedule(rate)
    if settings.schedule == "cosine":
        rest = optax.cosine_decay_schedule(rate, settings.steps - settings.warm_up)
    schedule = warmed_up(rate, settings.warm_up, rest)
    # A constant schedule returns a number of Python.
    rates = np.asarray(jax.vmap(lambda step: jnp.asarray(schedule(step)))(jnp.arange(settings.steps)), np.float32)
    return np.outer(rates, np.array([1, settings.table_rate], np.float32)) if settings.two_rates else rates


def groups_at_once(seconds: float) -> int:
    """Return how many groups, which take `seconds` each, a fixed map trains before the host waits for the devices.

    An accelerator would wait for the host between the steps of small models. The groups take at most about a second, after
    which the host can save a checkpoint or stop. A CPU trains one group.
    """
    return 1 if jax.default_backend() == "cpu" else min(MOST_AT_ONCE, max(1, int(1 / max(seconds, 1e-9))))


def mean_loss(layered: Layered, params: PyTree, batches: Sequence[tuple[Any, float]], wiring: tying.Wiring) -> float:
    """Return the mean loss of weighted batches without dropout; params: stored parameters on the devices."""
    losses = [layered.loss(params, batch, wiring) for batch, _ in batches]
    return float(np.average([float(loss) for loss in losses], weights=[weight for _, weight in batches]))
