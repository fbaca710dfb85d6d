"""Training rates of every study on this machine, and a comparison of its results with those of its CPU.

Single seeds of EXor are chaotic: rounding decides on which plateau a seed ends. So the comparison takes the losses of the first
steps and, for full training, the number of seeds that solve the task.
"""

import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import jax
import numpy as np

from experiments.bench.contender import devices_on_cpu
from experiments.bench.device_parts import PARTS, Measured
from experiments.bench.settings import DeviceBench
from experiments.bench.timing import write_results
from tiejax.lab.runs.console import Console
from tiejax.system.files import replace

Side = Literal["here", "cpu"]
SIDES: tuple[Side, ...] = ("here", "cpu")
CORES_OF_ACCELERATOR = 4  # left to the process that uses the accelerator


def run(settings: DeviceBench, console: Console) -> None:
    """Measure every part on the machine's devices and, without rates, on its CPU; write results.json after every part.

    With an accelerator and many cores, the CPU computes its parts at the same time. A part that fails does not end the others.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as with Ctrl-C, so that no process is left behind
    cpu_only, cores = devices_on_cpu(device_a_core=False), allowed_cores()
    together = has_accelerator() and len(cores) > 2 * CORES_OF_ACCELERATOR
    of_accelerator = cores[:CORES_OF_ACCELERATOR] if together else cores
    for side in SIDES:
        for name in settings.parts:
            file_of(settings, name, side).unlink(missing_ok=True)

    processes: list[SpawnProcess] = []

    def start(names: Sequence[str], side: Side, environment: dict[str, str], kept: list[int]) -> SpawnProcess:
        with mock.patch.dict(os.environ, environment):
            process = multiprocessing.get_context("spawn").Process(target=measure, args=(settings, names, side, kept))
            process.start()
        processes.append(process)
        return process

    try:
        beside = start(settings.parts, "cpu", cpu_only, cores[CORES_OF_ACCELERATOR:]) if together else None
        for name in settings.parts:
            wait(start([name], "here", {}, of_accelerator), settings, [name], "here")
            console.say(line_of_rates(name, read(settings, name, "here")))
            write(settings, together)
        wait(beside or start(settings.parts, "cpu", cpu_only, cores), settings, settings.parts, "cpu")
        for name in settings.parts:
            console.say(line_of_comparison(name, *(read(settings, name, side) for side in SIDES)))
    finally:
        for process in processes:
            process.kill()
            process.join()
        console.result(f"results: {write(settings, together)}")


def allowed_cores() -> list[int]:
    """Return the cores that this process may use; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def has_accelerator() -> bool:
    """Return whether jax finds a GPU or TPU, asked in a new process so that this one does not hold its memory."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(jax.default_backend) != "cpu"


def wait(process: SpawnProcess, settings: DeviceBench, names: Sequence[str], side: Side) -> None:
    """Wait for a process; if it was killed, for example for its memory, note that in the files of the parts it did not end."""
    process.join()
    for name in names:
        if process.exitcode and not (found := read(settings, name, side)).get("ended"):
            keep(settings, name, side, found | {"failed": f"the process ended with status {process.exitcode}"})


def measure(settings: DeviceBench, names: Sequence[str], side: Side, kept: list[int]) -> None:
    """Write the measurements of parts to their files, each when it is made; `failed` holds a traceback. kept: cores to use."""
    if kept:
        os.sched_setaffinity(0, kept)
    for name in names:
        measured = Measured()
        try:
            for found in PARTS[name](settings, side == "here"):
                for key, value in found.items():
                    measured[key] = measured[key] | value if isinstance(measured.get(key), dict) else value
                keep(settings, name, side, measured)
        except Exception:  # no failure may cost the measurements of the other parts
            measured["failed"] = traceback.format_exc()
        keep(settings, name, side, measured | {"ended": True})


def file_of(settings: DeviceBench, name: str, side: Side) -> Path:
    """Return the file of a part's measurements."""
    return Path(settings.out) / "parts" / f"{name}-{side}.json"


def keep(settings: DeviceBench, name: str, side: Side, measured: Measured) -> None:
    """Write the measurements of a part."""
    file = file_of(settings, name, side)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, json.dumps(measured).encode())


def write(settings: DeviceBench, together: bool) -> Path:
    """Write results.json with what was measured so far; return its path."""
    parts = {name: part_of(settings, name) for name in settings.parts}
    # This process asks jax for the names of the devices, whose memory another process may hold.
    with mock.patch.dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false"):
        return write_results("device", settings, {"cpu_at_the_same_time": together, "parts": parts})


def read(settings: DeviceBench, name: str, side: Side) -> Measured:
    """Return what was measured of a part so far."""
    file = file_of(settings, name, side)
    found: Measured = json.loads(file.read_text()) if file.exists() else {}
    return found


def part_of(settings: DeviceBench, name: str) -> dict[str, Any]:
    """Return both sides of a part, and how far apart their losses are if both were measured."""
    part: dict[str, Any] = {side: read(settings, name, side) for side in SIDES}
    here, cpu = (part[side].get("losses") for side in SIDES)
    return part | ({"losses_apart": relative_difference(here, cpu)} if here and cpu else {})


def relative_difference(losses: list[float], others: list[float]) -> float:
    """Return the largest difference between two lists of losses, relative to the larger loss of each pair."""
    one, other = np.array(losses), np.array(others)
    return float(np.max(np.abs(one - other) / np.maximum(np.abs(one), np.abs(other))))


def line_of_rates(name: str, here: Measured) -> str:
    """Return the line with a part's rates for the terminal."""
    words = []
    for unit in ("model_steps_per_s", "tokens_per_s", "ms_a_step", "member_steps_per_s"):
        found = here.get(unit, {})
        for form, rate in ({"": found} if "median" in found else found).items():
            words.append(f"{form} {rate['median']:,.1f} {unit.replace('_per_', '/').replace('_', ' ')}".strip())
    if "failed" in here:
        words.append(f"failed: {here['failed'].splitlines()[-1]}")
    return f"{name}: {'; '.join(words)}"


def line_of_comparison(name: str, here: Measured, cpu: Measured) -> str:
    """Return the line that compares a part with that of the CPU."""
    words = []
    if "losses" in here and "losses" in cpu:
        apart = relative_difference(here["losses"], cpu["losses"])
        words.append(f"losses of the first steps differ from the CPU's by {apart:.1e}")
    if "solved" in here and "solved" in cpu:
        both = ", ".join(f"{arm} {here['solved'][arm]} ({cpu['solved'][arm]} on the CPU)" for arm in here["solved"])
        words.append(f"seeds that solve the task, of {here['seeds']}: {both}")
    if "failed" in cpu:
        words.append(f"failed on the CPU: {cpu['failed'].splitlines()[-1]}")
    return f"{name}: {'; '.join(words) or 'not compared'}"
