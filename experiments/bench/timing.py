"""Timing of an ensemble's training, summaries of repeated measurements, and results.json."""

import dataclasses
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.contender import Train, Work
from experiments.bench.settings import ENDLESS
from tiejax.training import DrawAhead, Ensemble, EnsembleState, Recorder, TrainState, compile_ensemble


class Timed(NamedTuple):
    """Duration of some steps in seconds, and the part of it during which the devices were busy."""

    seconds: float
    worked_s: float


class TimedEnsemble:
    """A compiled ensemble on its devices; every call of `train` continues where the last one ended.

    start: members to start from, instead of those of `Ensemble.start`. compile_s: seconds of compilation. memory_bytes:
    arguments and temporaries on all devices, as counted by the compiler.
    """

    def __init__(self, ensemble: Ensemble, seeds: Sequence[int], start: TrainState | None = None) -> None:
        self._ensemble = ensemble
        members = ensemble.start(seeds) if start is None else EnsembleState(start, jnp.int32(0))
        began = time.perf_counter()
        self._runner = compile_ensemble(ensemble, seeds, members)
        self.compile_s = time.perf_counter() - began
        memory = self._runner.executable.memory_analysis()
        self.memory_bytes = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) * jax.device_count()
        self._placed, self._cursor = self._runner.to_devices(members), 0

    def train(self, steps: int) -> Timed:
        """Train `steps` more steps, in chunks as a run does."""
        began, worked_s, end = time.perf_counter(), 0.0, self._cursor + steps
        while self._cursor < end:
            until = min(end, self._ensemble.longest_chunk(self._cursor))
            self._placed, _, seconds = self._runner.advance(self._placed, until)
            self._cursor, worked_s = until, worked_s + seconds
        jax.block_until_ready(self._placed)
        return Timed(time.perf_counter() - began, worked_s)

    def steps_in(self, seconds: float, few: int) -> float:
        """Estimate how many steps take `seconds` seconds, by training `few` steps, or a window of draws if that is longer."""
        source = self._ensemble.source
        few = max(few, source.steps) if isinstance(source, DrawAhead) else few
        return seconds / self.train(few).seconds * few

    def paced(self, work: float, few: int) -> Train:
        """Return the training of a contender, warmed up, its pace estimated from `few` steps. work: tokens of a step."""
        self.train(1)
        seconds_per_step = self.train(few).seconds / few

        def train(seconds: float) -> Work:
            steps = max(1, round(seconds / seconds_per_step))
            return Work(round(steps * work), self.train(steps).seconds)

        return train


def recording_nothing(ensemble: Ensemble) -> Ensemble:
    """Return the ensemble with a single tiny record at the start, so that only training and its memory are measured."""
    nothing = Recorder(ENDLESS, lambda params, batch, seed_key, step: {"step_seen": jnp.asarray(step)})
    return dataclasses.replace(ensemble, recorders={"none": nothing})


def spread(measurements: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum of repeated measurements."""
    return {"median": float(np.median(measurements)), "min": float(min(measurements)), "max": float(max(measurements))}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum of the ratio of two sides, which took turns."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def range_words(found: Mapping[str, float], form: str = ",.0f") -> str:
    """Return the range of a spread for the terminal. form: the format of its numbers."""
    return f"({found['min']:{form}} to {found['max']:{form}})"


def over_words(found: Mapping[str, float], name: str) -> str:
    """Return a ratio to a side for the terminal."""
    return f"{found['median']:.2f} x {name} {range_words(found, '.2f')}"


def write_results(benchmark: str, settings: Any, measured: dict[str, Any]) -> Path:
    """Write results.json with the measurements, the settings and a description of the machine; return its path."""
    results = {
        "benchmark": benchmark,
        "config": dataclasses.asdict(settings),
        "devices": [device.device_kind for device in jax.devices()],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "jax": jax.__version__,
        **measured,
    }
    file = Path(settings.out) / "results.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1))
    return file
