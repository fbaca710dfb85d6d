"""The models of a run, dealt out over devices, and the files that each leaves."""

import concurrent.futures
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.flax

from tiejax import training, tying
from tiejax.reporting.words import counted
from tiejax.runs.console import Console
from tiejax.runs.run_directory import RunDirectory
from tiejax.settings.command_line import BadInput
from tiejax.studies.layer_tying.job import Data, Job, Protocol, Records, run_job
from tiejax.studies.layer_tying.model import TABLES, build
from tiejax.studies.layer_tying.settings import AFTER_AGENT, AGENTS, Settings
from tiejax.studies.layer_tying.text import Text, build_data
from tiejax.training.layered import Layered, stack_of, with_stack

RANDOM_MAPS = 1004  # a stream of randomness that nothing else draws from


FINISHED = "finished"


def protocol_of(settings: Settings) -> "Protocol":
    """Return what all models of a resolved configuration have in common."""

    assert settings.steps is not None
    return Protocol(
        settings.layers,
        settings.steps,
        settings.k,
        settings.ties,
        settings.start,
        settings.gradient,
        settings.storage,
        settings.reward,
        settings.epsilon_floor,
        settings.validate_every,
    )


def job_of(settings: Settings, method: str, seed: int, of_agent: "Records | None") -> "Job":
    """Return one model of a run; of_agent: the records of the agent of its seed, where the method waits for it."""

    if method in AGENTS:
        return Job(method, seed, AGENTS[method], None)  # type: ignore[arg-type]
    assert settings.distinct is not None
    if method == "found-map":
        assert of_agent is not None
        group = of_agent["final"]["best_owner"][0]
        return Job(method, seed, None, tying.of_groups(group))
    if method == "random-map":
        number = settings.distinct if of_agent is None else len(np.unique(of_agent["final"]["best_owner"][0]))
        rng = np.random.default_rng([seed, RANDOM_MAPS])
        return Job(method, seed, None, tying.random_map(settings.layers, number, rng))
    if settings.maps and method in settings.maps:
        return Job(method, seed, None, tying.check_owner(settings.maps[method]))
    return Job(method, seed, None, tying.static_map(method, settings.layers, settings.distinct))


def name_of(method: str, seed: int) -> str:
    """Return how files call one model of a run."""
    return f"{method}-seed{seed}"


def weights_file(params: Any, owner: np.ndarray) -> bytes:
    """Return a safetensors file of parameters with a place for every layer: distinct arrays once, and in its metadata the ties.

    Metadata: `owner`, the layer whose weights each layer has; `places`, its place in the stack that is saved; `tied`, the pair
    of tables that are one.
    """

    # As `to_device` takes a fetched state, so that it holds whatever rule the ties are by.
    stack = jax.tree.map(lambda leaf: leaf[np.unique(owner)], stack_of(params))
    leaves = jax.tree_util.tree_leaves_with_path(with_stack(params, stack))
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): jax.numpy.asarray(leaf) for path, leaf in leaves}
    places = tying.places(owner, "compact").tolist()
    facts = {"owner": owner.tolist(), "places": places, "tied": TABLES}
    found: bytes = safetensors.flax.save(named, {name: json.dumps(value) for name, value in facts.items()})
    return found


class Jobs:
    """The models of a run, dealt out over devices: each trains one at a time, and takes the next that waits for nothing."""

    def __init__(self, settings: Settings, text: Text, run: RunDirectory, resume: bool, console: Console) -> None:
        self._config, self._text, self._run, self._resume, self._console = settings, text, run, resume, console
        self._lock = threading.Lock()
        self._every = [(method, seed) for method in settings.names for seed in settings.seed_list]
        files = {one: run.path / FINISHED / f"{name_of(*one)}.npz" for one in self._every}
        self.records: dict[tuple[str, int], Records] = {one: read_records(path) for one, path in files.items() if path.exists()}
        for one in self.records:  # killed between writing the one and removing the other, a run leaves both
            run.remove(f"checkpoints/{name_of(*one)}")
        self._waiting = [one for one in self._every if one not in self.records]
        assert settings.steps is not None
        self.total, self.done = len(self._every) * settings.steps, len(self.records) * settings.steps
        self.here, self.compile_s = 0, 0.0
        self.began, self.train_s = time.perf_counter(), 0.0

    def run(self, devices: Sequence["jax.Device"], stop: Callable[[], bool]) -> None:
        """Train everything, or until `stop` says so; raises whatever a model raises, after the others have saved themselves."""
        self._stop = stop
        with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
            working = [pool.submit(self._work, device) for device in devices[: len(self._waiting)]]
            while not all(one.done() for one in working):
                time.sleep(0.2)
                if any(one.done() and one.exception() for one in working):
                    self._stop = lambda: True
                with self._lock:
                    self.train_s = time.perf_counter() - self.began
                    self._console.progress(self.done, self.total, self.here, self.train_s, 1)
        for one in working:
            one.result()

    @property
    def stopped(self) -> bool:
        """Whether models are left that did not finish."""
        return len(self.records) < len(self._every)

    def _next(self) -> tuple[str, int] | None:
        with self._lock:
            for place, (method, seed) in enumerate(self._waiting):
                if self._of_agent(method, seed) is not None or not self._waits(method):
                    return self._waiting.pop(place)
        return None

    def _waits(self, method: str) -> bool:
        return method in AFTER_AGENT and "agent" in self._config.methods

    def _of_agent(self, method: str, seed: int) -> "Records | None":
        return self.records.get(("agent", seed)) if self._waits(method) else None

    def _work(self, device: "jax.Device") -> None:

        with jax.default_device(device):
            layered = build(self._config, self._text.streams.vocabulary, self._text.streams.begin, device)
            data = build_data(self._config, self._text)
            while self._waiting and not self._stop():
                chosen = self._next()
                if chosen is None:
                    time.sleep(0.2)
                    continue
                before = layered.compile_s
                self._one(layered, data, *chosen)
                with self._lock:
                    self.compile_s += layered.compile_s - before

    def _told(self, steps: int, seconds: float) -> None:
        with self._lock:
            self.done += steps
            self.here += steps if seconds else 0

    def _one(self, layered: "Layered", data: "Data", method: str, seed: int) -> None:

        assert self._config.steps is not None
        name = name_of(method, seed)
        job = job_of(self._config, method, seed, self._of_agent(method, seed))
        folder = self._run.checkpoints / name / "steps"
        with self._lock:  # orbax is not made to be started by several threads at once
            checkpoints = training.Checkpoints(folder, [tying.Tie(*TABLES)], say=self._console.warn)
        protocol, every = protocol_of(self._config), self._config.checkpoint_every
        try:
            found = run_job(layered, protocol, job, data, checkpoints, self._resume, self._stop, self._told, every)
        except training.CheckpointMismatch as error:
            raise BadInput(f"--resume: {error}") from None
        checkpoints.close()
        if found is None:
            return
        records, params = found
        self._run.write(f"models/{name}.safetensors", weights_file(params, records["final"]["best_owner"][0]))
        self._run.write(f"{FINISHED}/{name}.npz", written_records(records))
        self._run.remove(f"checkpoints/{name}")
        with self._lock:
            self.records[method, seed] = records
        number, loss = len(np.unique(records["final"]["final_owner"][0])), float(records["final"]["test"][0])
        self._console.say(f"{method}, seed {seed}: {counted(number, 'distinct layer')}, test loss {loss:.4f} nats a token")


def written_records(records: "Records") -> bytes:
    """Return the records of a model as an .npz file."""
    buffer = io.BytesIO()
    arrays = {f"{group}/{name}": values for group, fields in records.items() for name, values in fields.items()}
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_records(path: Path) -> "Records":
    """Return the records of a model from an .npz file; raises BadInput if it is damaged."""
    records: Records = {}
    try:
        with np.load(path) as arrays:
            for full, values in arrays.items():
                group, _, name = full.partition("/")
                records.setdefault(group, {})[name] = values
    except (OSError, ValueError, zipfile.BadZipFile):
        raise BadInput(f"--resume: {path} is damaged; remove it, and that model is trained again") from None
    return records
