"""Training of the models of a run: each device trains one model at a time, then takes the next that is ready.

With more accelerators than models, groups of devices train a model together.
"""

import concurrent.futures
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax import tying
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.checkpoints import open_checkpoints
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.pace import Pace
from tiejax.lab.runs.rates import Pair
from tiejax.lab.runs.run_directory import FINISHED, RunDirectory
from tiejax.lab.runs.stop import Stopped
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying.initial_weights import params_at_start
from tiejax.lab.studies.layer_tying.job import Data, job_of, run_job
from tiejax.lab.studies.layer_tying.model import build, weights_file
from tiejax.lab.studies.layer_tying.records import Records, points_of, read_records, records_file
from tiejax.lab.studies.layer_tying.settings import AFTER_AGENT, Form
from tiejax.lab.studies.layer_tying.text import Text, build_data
from tiejax.models import TABLE_PATHS
from tiejax.training.checkpoint import CheckpointMismatch
from tiejax.training.layered import Layered

WAIT_S = 0.2


class ModelName(NamedTuple):
    """One model of a run.

    rate: the learning rate, of models that choose it; None for the reported ones. factor: of the tables' rate, of models that
    choose it.
    """

    method: str
    seed: int
    rate: float | None = None
    factor: float = 1.0


def name_of(model: ModelName) -> str:
    """Return the name of a model in file names."""
    rate = "" if model.rate is None else f"-rate{model.rate!r}"
    factor = "" if model.factor == 1 else f"-tables{model.factor!r}"
    return f"{model.method}-seed{model.seed}{rate}{factor}"


def records_of(model: ModelName) -> str:
    """Return the path of a model's records in the run directory; the file exists once the model is trained."""
    return f"{FINISHED}/{name_of(model)}.npz"


def weights_of(model: ModelName) -> str:
    """Return the path of a model's weights in the run directory."""
    return f"models/{name_of(model)}.safetensors"


class Jobs:
    """The queue of models of a run, with their progress; models of the same form share the compiled functions of a group.

    records: records of the trained models. rates: learning rate, and factor of the tables', of each class of methods (default:
    those of the settings). later: steps, by class, of models that will be trained but are not known yet. done, here: steps of
    all models done so far, and steps done since this process began. train_s: seconds of training. pace: seconds per step of a
    group of devices, validations included, compilation excluded.
    """

    def __init__(self, launched: Launched, text: Text, console: Console, stop: Callable[[], bool]) -> None:
        assert launched.run is not None
        self._settings, self._text, self._directory = launched.settings, text, launched.run
        self._resume, self._console, self._tracker = launched.switches["resume"], console, launched.tracker
        self._stop = stop
        self._lock = threading.Lock()  # guards the fields below, except `_data` and `_layered`, whose keys differ by thread
        self._data: dict[tuple[jax.Device, ...], Data] = {}
        self._layered: dict[tuple[tuple[jax.Device, ...], Form], Layered] = {}
        self.records: dict[ModelName, Records] = {}
        self.rates: Mapping[str, Pair] = {}
        self.later: dict[str, int] = {}
        self._expected: set[ModelName] = set()
        self._waiting: list[ModelName] = []
        self.done, self.here, self.train_s = 0, 0, 0.0
        self.pace, self._programs = Pace(), dict[tuple[jax.Device, ...], tuple[int, int]]()
        self._busy_s, self._begun = 0.0, 0  # seconds of all groups that count in the pace, and models

    @property
    def total(self) -> int:
        """The number of steps of all expected models."""
        return len(self._expected) * int(self._settings.steps or 0) + sum(self.later.values())

    @property
    def compile_s(self) -> float:
        """Seconds of compilation, summed over groups of devices."""
        return sum(layered.compile_s for layered in self._layered.values())

    def train(self, models: Sequence[ModelName]) -> None:
        """Train models on all devices; if one raises, re-raise after the others have saved checkpoints.

        Raises Stopped if the run was asked to stop and some are unfinished.
        """
        self.expect(models)
        self._ask(models)
        began, before, devices = time.perf_counter(), self.train_s, jax.devices()
        groups = groups_of(devices, len(models), self._settings.batch_size, devices[0].platform)
        with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
            workers = [pool.submit(self._work, tuple(group)) for group in groups[: len(self._waiting)]]
            try:
                while not all(worker.done() for worker in workers):
                    time.sleep(WAIT_S)
                    if any(worker.done() and worker.exception() for worker in workers):
                        self._stop = lambda: True
                    with self._lock:
                        self.train_s = before + time.perf_counter() - began
                        self._show(len(workers))
            except BaseException:  # such as output that cannot be written
                self._stop = lambda: True
                raise
        for worker in workers:
            worker.result()
        if any(model not in self.records for model in models):
            raise Stopped(f"after {self.done:,} of {self.total:,} steps")

    def _show(self, groups: int) -> None:
        """Show the progress of this number of groups, which train at the same time."""
        if not self.here:
            self._console.compiling()
            return
        each, left = self.pace.seconds, sum(model not in self.records for model in self._expected) - groups
        # What each model took besides its steps, such as compilation.
        besides = max(0, left) * (self.train_s - self._busy_s / groups) / max(1, self._begun)
        self._console.progress(self.done, self.total, each and groups / each, 1, besides=besides)

    def expect(self, models: Sequence[ModelName]) -> None:
        """Count the steps of models that will be trained, now or later, in `total`."""
        self._expected |= set(models)

    def _ask(self, models: Sequence[ModelName]) -> None:
        """Add models to the queue, unless they are trained; the records of those that an earlier process finished are read."""
        for model in models:
            if model not in self.records and self._directory.holds(records_of(model)):
                self.records[model] = read_finished(self._directory, model)
                self.done += int(self._settings.steps or 0)
        self._waiting += [model for model in models if model not in self.records]

    def _work(self, devices: tuple[jax.Device, ...]) -> None:
        """Train models from the queue on a group of devices, one at a time."""
        with jax.default_device(devices[0]):
            if devices not in self._data:
                self._data[devices] = build_data(self._settings, self._text)
            while self._waiting and not self._stop():
                model = self._next()
                if model is None:
                    time.sleep(WAIT_S)
                else:
                    self._train(model, devices)
        with self._lock:
            self.pace.end(self._programs.pop(devices, None))

    def _next(self) -> ModelName | None:
        """Take the first model that needs no agent or whose agent is trained; None if there is none."""
        with self._lock:
            for model in self._waiting:
                if (agent := self._agent_of(model)) is None or agent in self.records:
                    self._waiting.remove(model)
                    return model
            return None

    def _agent_of(self, model: ModelName) -> ModelName | None:
        """Return the agent whose records a model needs, None if it needs none."""
        needed = model.rate is None and model.method in AFTER_AGENT and "agent" in self._settings.methods
        return ModelName("agent", model.seed) if needed else None

    def _train(self, model: ModelName, devices: tuple[jax.Device, ...]) -> None:
        """Train a model, resuming from its last checkpoint if the run is resumed, and keep it unless it was stopped."""
        settings, agent, data = self._settings, self._agent_of(model), self._data[devices]
        pair = self.rates.get(settings.class_of(model.method)) if model.rate is None else (model.rate, model.factor)
        if pair is not None:
            settings = dataclasses.replace(settings, learning_rate=pair[0], table_rate=pair[1])
        job = job_of(settings, model.method, model.seed, None if agent is None else self.records[agent])
        job = job._replace(params=params_at_start(settings, self._directory, model.method))
        folder = self._directory.checkpoints / name_of(model) / "steps"
        with self._lock:  # orbax must not be started by several threads at once
            checkpoints = open_checkpoints(self._directory, folder, [tying.Tie(*TABLE_PATHS)], self._console.warn)
        key = devices, settings.form(model.method)
        if key not in self._layered:
            streams = self._text.streams
            self._layered[key] = build(self._settings, streams.vocabulary, streams.begin, devices, form=key[1])
        layered = self._layered[key]
        try:
            trained = run_job(
                layered,
                settings,
                job,
                # The choice of a rate needs no loss on other text than that of the validations.
                data if model.rate is None else data._replace(held_out={}),
                checkpoints,
                resume=self._resume,
                stop_requested=lambda: self._stop(),
                on_steps=self._counter(devices, layered),
                on_saved=functools.partial(self._track, model),
            )
        except CheckpointMismatch as error:
            raise BadInput(f"--resume: {error}") from None
        checkpoints.close()
        if trained is not None:
            records, params = trained
            weights = None if model.rate is not None else weights_file(params, records["final"]["best_owner"][0])
            self._keep(model, records, weights)

    def _counter(self, devices: tuple[jax.Device, ...], layered: Layered) -> Callable[[int, float], None]:
        """Return the function that adds to the steps done; steps that took no time were done by an earlier process."""

        def clock() -> float:
            return time.perf_counter() - layered.compile_s

        last = clock()

        def count(steps: int, seconds: float) -> None:
            nonlocal last
            before, last = last, clock()
            with self._lock:
                self.done += steps
                if seconds:
                    self.here += steps
                    self._busy_s += last - before
                    self.pace.add(self._running(devices, layered), steps, last - before)

        with self._lock:
            self._begun += 1
            self._running(devices, layered)
        return count

    def _running(self, devices: tuple[jax.Device, ...], layered: Layered) -> tuple[int, int]:
        """Return the program that a group of devices runs from now on; every compilation begins another one."""
        program = id(layered), layered.compilations
        if (before := self._programs.get(devices)) != program:
            self.pace.end(before)
            self.pace.begin(program)
            self._programs[devices] = program
        return program

    def _track(self, model: ModelName, records: Records) -> None:
        """Send what a model has recorded so far to the tracker."""
        if self._tracker.tracks and model.rate is None:
            self._tracker.add(name_of(model), points_of(records, model.method, model.seed, self._settings.k))

    def _keep(self, model: ModelName, records: Records, weights: bytes | None) -> None:
        """Write the files of a trained model and print its result; the records come last and mark the model as finished."""
        with self._lock:  # every write updates the one file that lists the contents of the run
            if weights is not None:
                self._directory.write(weights_of(model), weights)
            self._directory.write(records_of(model), records_file(records))
            self.records[model] = records
        self._directory.remove(f"checkpoints/{name_of(model)}")
        if model.rate is not None:
            factor = "" if model.factor == 1 else f", times {model.factor:g} for the tables"
            words = f"learning rate {model.rate:g}{factor}, validation loss {best_loss(records):.4f}"
        else:
            distinct = counted(len(np.unique(records["final"]["final_owner"][0])), "distinct layer")
            words = f"{distinct}, test loss {float(records['final']['test'][0]):.4f}"
        self._console.say(f"{model.method}, seed {model.seed}: {words} nats per token")


def best_loss(records: Records) -> float:
    """Return the lowest validation loss of a model, infinite if a loss is not finite."""
    losses = records["validation"]["loss"]
    return float(losses.min()) if np.isfinite(losses).all() and np.isfinite(records["step"]["loss"]).all() else np.inf


def groups_of(devices: Sequence[Any], models: int, rows: int, platform: str) -> list[Sequence[Any]]:
    """Split the devices into groups that each train a model at a time: the smallest that leave no group without a model.

    rows: rows of a batch, which the devices of a group share equally. platform: of the devices; CPU devices do not form groups,
    since collectives between them can deadlock.
    """
    if platform == "cpu":
        return [[device] for device in devices]
    fitting = [size for size in range(1, len(devices) + 1) if len(devices) % size == 0 and rows % size == 0]
    size = min((size for size in fitting if len(devices) // size <= models), default=max(fitting))
    return [devices[first : first + size] for first in range(0, len(devices), size)]


def read_finished(directory: RunDirectory, model: ModelName) -> Records:
    """Return the records of a model that an earlier process finished; raises BadInput if they or its weights are damaged."""
    records = read_records(directory.read(records_of(model), "that model is trained again"))
    if model.rate is None and not directory.intact(weights_of(model)):
        raise BadInput(
            f"--resume: {directory.path / weights_of(model)} is damaged or missing; remove "
            f"{directory.path / records_of(model)} to train that model again"
        )
    # Left over if the run was killed between writing the records and removing the checkpoints.
    directory.remove(f"checkpoints/{name_of(model)}")
    return records
