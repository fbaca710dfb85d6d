"""Scheduling of the models of a run over devices: each device trains one model at a time, then takes the next that is ready.

With more accelerators than models, groups of devices train a model together. With several processes per device, each process
trains one model at a time.
"""

import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.runs.trackers import Tracker
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying import files
from tiejax.lab.studies.layer_tying.processes import Assignment, RemoteTrainer
from tiejax.lab.studies.layer_tying.records import Records, points_of
from tiejax.lab.studies.layer_tying.settings import AFTER_AGENT, Settings
from tiejax.lab.studies.layer_tying.text import Text
from tiejax.lab.studies.layer_tying.trainer import ModelName, Task, Trainer, Watcher, name_of

FINISHED = "finished"  # folder with the records of trained models
WAIT_S = 0.2

T = TypeVar("T")


def records_of(model: ModelName) -> str:
    """Return the path of a model's records in the run directory; the file exists once the model is trained."""
    return f"{FINISHED}/{name_of(model)}.npz"


def weights_of(model: ModelName) -> str:
    """Return the path of a model's weights in the run directory."""
    return f"models/{name_of(model)}.safetensors"


class Jobs:
    """The queue of models of a run, with their progress.

    records: records of the trained models. rates: learning rate of each class of methods (default: that of the settings).
    total, done, here: steps of all models that are expected, steps done so far, and steps done since this process began.
    compile_s: seconds of compilation, summed over devices and processes. train_s: seconds of training.
    """

    def __init__(
        self, settings: Settings, text: Text, directory: RunDirectory, resume: bool, console: Console, tracker: Tracker
    ) -> None:
        assert settings.steps is not None
        self._settings, self._text, self._directory = settings, text, directory
        self._resume, self._console, self._tracker = resume, console, tracker
        self._stop: Callable[[], bool] = lambda: False
        self._trainers: dict[tuple[jax.Device, ...], Trainer] = {}
        self._processes: list[RemoteTrainer] = []
        self._lock = threading.Lock()  # guards the fields below
        self.records: dict[ModelName, Records] = {}
        self.rates: Mapping[str, float] = {}
        self._expected: set[ModelName] = set()
        self._models: list[ModelName] = []
        self._waiting: list[ModelName] = []
        self._methods: dict[Trainer | RemoteTrainer, set[str]] = {}  # of which each trainer has trained models
        self.done = 0
        self.here, self.compile_s, self.train_s = 0, 0.0, 0.0

    @property
    def stopped(self) -> bool:
        """Whether some models are unfinished."""
        return len(self.records) < len(self._models)

    @property
    def total(self) -> int:
        """The number of steps of all expected models."""
        assert self._settings.steps is not None
        return len(self._expected) * self._settings.steps

    def train(self, models: Sequence[ModelName], devices: Sequence[jax.Device], stop: Callable[[], bool]) -> None:
        """Train models, or stop when `stop()` is true; if one raises, re-raise after the others have saved checkpoints."""
        self.expect(models)
        self._ask(models)
        self._stop, began, before = stop, time.perf_counter(), self.train_s
        trainers = self._trainers_on(devices, len(models))
        with concurrent.futures.ThreadPoolExecutor(len(trainers)) as pool:
            workers = [pool.submit(self._work, trainer) for trainer in trainers[: len(self._waiting)]]
            try:
                while not all(worker.done() for worker in workers):
                    time.sleep(WAIT_S)
                    if any(worker.done() and worker.exception() for worker in workers):
                        self._stop = lambda: True
                    with self._lock:
                        self.train_s = before + time.perf_counter() - began
                        self._console.progress(self.done, self.total, self.here, self.train_s, 1)
            except BaseException:  # such as output that cannot be written
                self._stop = lambda: True
                raise
        for worker in workers:
            worker.result()

    def expect(self, models: Sequence[ModelName]) -> None:
        """Count the steps of models that will be trained, now or later, in `total`."""
        self._expected |= set(models)

    def _ask(self, models: Sequence[ModelName]) -> None:
        """Add models to the run; those that an earlier process finished are read."""
        assert self._settings.steps is not None
        new = [model for model in models if model not in self._models]
        found = finished(self._directory, new)
        self.records |= found
        self._models += new
        self._waiting += [model for model in new if model not in found]
        self.done += len(found) * self._settings.steps

    def close(self) -> None:
        """End the processes that train models."""
        for trainer in self._processes:
            trainer.close()

    def _trainers_on(self, devices: Sequence[jax.Device], models: int) -> Sequence[Trainer | RemoteTrainer]:
        """Return a trainer for each group of devices, or one for each process."""
        settings, text, directory, resume = self._settings, self._text, self._directory, self._resume
        if settings.processes_per_device > 1:
            if not self._processes:
                numbers = [number for _ in range(settings.processes_per_device) for number in range(len(devices))]
                assigned = [Assignment(settings, text, directory.manifest, resume, number) for number in numbers]
                self._processes = list(map(RemoteTrainer, assigned))
            return self._processes
        groups = [tuple(group) for group in groups_of(devices, models, settings.batch_size, devices[0].platform)]
        for group in groups:
            if group not in self._trainers:
                self._trainers[group] = Trainer(settings, text, directory, resume, group)
        return [self._trainers[group] for group in groups]

    def _work(self, trainer: Trainer | RemoteTrainer) -> None:
        """Train models from the queue, one at a time."""
        while self._waiting and not self._stop():
            model = self._next(trainer)
            if model is None:
                time.sleep(WAIT_S)
                continue
            ended = trainer.train(self._task_of(model), self._watcher_of(model))
            with self._lock:
                self.compile_s += ended.compile_s
            if ended.records is not None:
                self._keep(model, ended.records, ended.weights)

    def _next(self, trainer: Trainer | RemoteTrainer) -> ModelName | None:
        """Take the first model that needs no agent or whose agent is trained; None if there is none.

        A process, which shares no compiled functions with others, prefers the methods that it has trained, then those that no
        other process has.
        """
        with self._lock:
            ready = [model for model in self._waiting if not self._waits_for_agent(model) or self._agent_of(model) is not None]
            if not ready:
                return None
            model = ready[0]
            if self._processes:
                own, others = self._methods.setdefault(trainer, set()), set().union(*self._methods.values())
                model = min(ready, key=lambda model: (model.method not in own, model.method in others))
                own.add(model.method)
            self._waiting.remove(model)
            return model

    def _task_of(self, model: ModelName) -> Task:
        rate = self.rates.get(self._settings.class_of(model.method)) if model.rate is None else model.rate
        return Task(model, rate, self._agent_of(model))

    def _watcher_of(self, model: ModelName) -> Watcher:
        return Watcher(lambda: self._stop(), self._count, functools.partial(self._track, model), self._console.warn)

    def _waits_for_agent(self, model: ModelName) -> bool:
        return model.rate is None and model.method in AFTER_AGENT and "agent" in self._settings.methods

    def _agent_of(self, model: ModelName) -> Records | None:
        """Return the records of the agent that a model needs; None if it is not trained yet or needs none."""
        return self.records.get(ModelName("agent", model.seed)) if self._waits_for_agent(model) else None

    def _count(self, steps: int, seconds: float) -> None:
        """Add to the steps done; steps that took no time were done by an earlier process."""
        with self._lock:
            self.done += steps
            self.here += steps if seconds else 0

    def _track(self, model: ModelName, records: Records) -> None:
        """Send what a model has recorded so far to the tracker."""
        if self._tracker.tracks and model.rate is None:
            self._tracker.add(name_of(model), points_of(records, model.method, model.seed, self._settings.k))

    def _keep(self, model: ModelName, records: Records, weights: bytes | None) -> None:
        """Write the files of a trained model and print its result; the records come last and mark the model as finished."""
        with self._lock:  # every write updates the one file that lists the contents of the run
            if weights is not None:
                self._directory.write(weights_of(model), weights)
            self._directory.write(records_of(model), files.records_file(records))
            self.records[model] = records
        self._directory.remove(f"checkpoints/{name_of(model)}")
        if model.rate is not None:
            words = f"learning rate {model.rate:g}, validation loss {best_loss(records):.4f}"
        else:
            distinct = counted(len(np.unique(records["final"]["final_owner"][0])), "distinct layer")
            words = f"{distinct}, test loss {float(records['final']['test'][0]):.4f}"
        self._console.say(f"{model.method}, seed {model.seed}: {words} nats per token")


def best_loss(records: Records) -> float:
    """Return the lowest validation loss of a model, infinite if a loss is not finite."""
    losses = records["validation"]["loss"]
    return float(losses.min()) if np.isfinite(losses).all() and np.isfinite(records["step"]["loss"]).all() else np.inf


def groups_of(devices: Sequence[T], models: int, rows: int, platform: str) -> list[Sequence[T]]:
    """Split the devices into groups that each train a model at a time: the smallest that leave no group without a model.

    rows: rows of a batch, which the devices of a group share equally. platform: of the devices; CPU devices do not form groups,
    since collectives between them can deadlock.
    """
    if platform == "cpu":
        return [[device] for device in devices]
    fitting = [size for size in range(1, len(devices) + 1) if len(devices) % size == 0 and rows % size == 0]
    size = min((size for size in fitting if len(devices) // size <= models), default=max(fitting))
    return [devices[first : first + size] for first in range(0, len(devices), size)]


def finished(directory: RunDirectory, models: Sequence[ModelName]) -> dict[ModelName, Records]:
    """Return the records of the models that an earlier process finished."""
    records = {}
    for model in models:
        if directory.holds(records_of(model)):
            records[model] = files.read_records(directory.read(records_of(model), "that model is trained again"))
            if model.rate is None and not directory.intact(weights_of(model)):
                raise BadInput(
                    f"--resume: {directory.path / weights_of(model)} is damaged or missing; remove "
                    f"{directory.path / records_of(model)} to train that model again"
                )
            # Left over if the run was killed between writing the records and removing the checkpoints.
            directory.remove(f"checkpoints/{name_of(model)}")
    return records
