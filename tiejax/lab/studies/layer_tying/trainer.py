"""Training of the models of a run on one group of devices, one model at a time, up to their records and weights."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from tiejax import training, tying
from tiejax.lab.runs.checkpoints import open_checkpoints
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying import files
from tiejax.lab.studies.layer_tying.initial_weights import params_at_start
from tiejax.lab.studies.layer_tying.job import job_of, run_job
from tiejax.lab.studies.layer_tying.model import build
from tiejax.lab.studies.layer_tying.records import Records
from tiejax.lab.studies.layer_tying.settings import Form, Settings
from tiejax.lab.studies.layer_tying.text import Text, build_data
from tiejax.models import TABLE_PATHS
from tiejax.training.layered import Layered

OPENING = threading.Lock()  # orbax must not be started by several threads at once


class ModelName(NamedTuple):
    """One model of a run. rate: the learning rate, of models that choose it; None for the reported ones."""

    method: str
    seed: int
    rate: float | None = None


def name_of(model: ModelName) -> str:
    """Return the name of a model in file names."""
    rate = "" if model.rate is None else f"-rate{model.rate!r}"
    return f"{model.method}-seed{model.seed}{rate}"


class Task(NamedTuple):
    """A model to train. rate: its learning rate, None for that of the settings. agent: records of the agent that it needs."""

    model: ModelName
    rate: float | None
    agent: Records | None


class Watcher(NamedTuple):
    """What a trainer asks and tells while it trains a model.

    stop: whether to stop. steps: a number of new steps and the seconds they took. saved: the records of a checkpoint. warn: a
    line for the user.
    """

    stop: Callable[[], bool]
    steps: Callable[[int, float], None]
    saved: Callable[[Records], None]
    warn: Callable[[str], None]


class Ended(NamedTuple):
    """A model after its training.

    records: None if it was stopped. weights: the file of its weights, None if it was stopped or only chooses a learning rate.
    compile_s: seconds of compilation.
    """

    records: Records | None
    weights: bytes | None
    compile_s: float


class Trainer:
    """Trains models on a group of devices, one at a time; models of the same form share the compiled functions."""

    def __init__(
        self, settings: Settings, text: Text, directory: RunDirectory, resume: bool, devices: Sequence[jax.Device]
    ) -> None:
        self._settings, self._text, self._directory = settings, text, directory
        self._resume, self._devices = resume, devices
        self._layered: dict[Form, Layered] = {}
        with jax.default_device(devices[0]):
            self._data = build_data(settings, text)

    def train(self, task: Task, watcher: Watcher) -> Ended:
        """Train a model, resuming from its last checkpoint if the run is resumed. Raises BadInput."""
        with jax.default_device(self._devices[0]):
            layered = self._layered_of(task.model.method)
            before = layered.compile_s
            trained = self._run(layered, task, watcher)
            weights = None
            if trained is not None and task.model.rate is None:
                records, params = trained
                weights = files.weights_file(params, records["final"]["best_owner"][0])
            return Ended(None if trained is None else trained[0], weights, layered.compile_s - before)

    def _layered_of(self, method: str) -> Layered:
        form = self._settings.form(method)
        if form not in self._layered:
            streams = self._text.streams
            self._layered[form] = build(self._settings, streams.vocabulary, streams.begin, self._devices, form=form)
        return self._layered[form]

    def _run(self, layered: Layered, task: Task, watcher: Watcher) -> tuple[Records, object] | None:
        settings, model = self._settings, task.model
        params = params_at_start(settings, self._directory, model.method)
        job = job_of(settings, model.method, model.seed, task.agent)._replace(rate=task.rate, params=params)
        folder = self._directory.checkpoints / name_of(model) / "steps"
        with OPENING:
            checkpoints = open_checkpoints(self._directory, folder, [tying.Tie(*TABLE_PATHS)], watcher.warn)
        try:
            trained = run_job(
                layered,
                settings,
                job,
                # The choice of a rate needs no loss on other text than that of the validations.
                self._data if model.rate is None else self._data._replace(held_out={}),
                checkpoints,
                resume=self._resume,
                stop_requested=watcher.stop,
                on_steps=watcher.steps,
                on_saved=watcher.saved,
                checkpoint_s=settings.checkpoint_every,
            )
        except training.CheckpointMismatch as error:
            raise BadInput(f"--resume: {error}") from None
        checkpoints.close()
        return trained
