"""How times are taken: an ensemble trained for so many steps at a time, repeated measurements in one line, results.json."""

import dataclasses
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.settings import ENDLESS
from tiejax.training import Ensemble, Recorder, compile_ensemble


class Timed(NamedTuple):
    """How long some steps took, and how much of that the devices worked."""

    seconds: float
    worked_s: float


class TimedEnsemble:
    """An ensemble that is compiled and on its devices, to be trained on for a while again and again.

    compile_s: seconds that compilation took. memory_bytes: arguments and temporaries of all devices, by the compiler's count.
    """

    def __init__(self, ensemble: Ensemble, seeds: Sequence[int]) -> None:
        self._ensemble, members = ensemble, ensemble.start(seeds)
        began = time.perf_counter()
        self._runner = compile_ensemble(ensemble, seeds, members)
        self.compile_s = time.perf_counter() - began
        memory = self._runner.executable.memory_analysis()
        self.memory_bytes = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) * jax.device_count()
        self._placed, self._cursor = self._runner.to_devices(members), 0

    def train(self, steps: int) -> Timed:
        """Train on for so many steps, chunk after chunk, as a run does."""
        began, worked_s, end = time.perf_counter(), 0.0, self._cursor + steps
        while self._cursor < end:
            until = min(end, self._ensemble.longest_chunk(self._cursor))
            self._placed, _, seconds = self._runner.advance(self._placed, until)
            self._cursor, worked_s = until, worked_s + seconds
        jax.block_until_ready(self._placed)
        return Timed(time.perf_counter() - began, worked_s)

    def steps_in(self, seconds: float, few: int) -> float:
        """Return about how many steps take so long, by training a few: at least those for which batches are drawn at a time."""
        ahead = self._ensemble.draw_ahead
        few = few if ahead is None else max(few, ahead.steps)
        return seconds / self.train(few).seconds * few


def recording_nothing(ensemble: Ensemble) -> Ensemble:
    """Return an ensemble that records next to nothing, and once: only its training is measured, and only its memory."""
    nothing = Recorder(ENDLESS, lambda params, batch, seed_key, step: {"step_seen": jnp.asarray(step)})
    return dataclasses.replace(ensemble, recorders={"none": nothing})


def spread(measurements: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum of repeated measurements."""
    return {"median": float(np.median(measurements)), "min": float(min(measurements)), "max": float(max(measurements))}


def write_results(benchmark: str, settings: Any, measured: dict[str, Any]) -> Path:
    """Write results.json: what was measured, with what settings, on what machine; return its path."""
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
