"""Training rates of every study on this machine, and a comparison of its results with those of its CPU.

Single seeds of EXor are chaotic: rounding decides on which plateau a seed ends. So the comparison takes the losses of the first
steps and, for full training, the number of seeds that solve the task.
"""

import json
import multiprocessing
import os
import threading
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.bench.contender import changed, devices_on_cpu
from experiments.bench.device_parts import PARTS, Measured
from experiments.bench.settings import DeviceBench
from experiments.bench.timing import write_results
from tiejax.lab.runs.console import Console

SIDES = ("here", "cpu")
CORES_OF_ACCELERATOR = 4  # left to the process that uses the accelerator
_STARTING = threading.Lock()  # a process inherits the environment, which is changed while it starts


def run(settings: DeviceBench, console: Console) -> None:
    """Measure every part on the machine's devices and, without rates, on its CPU; write results.json.

    With an accelerator, the CPU computes its parts at the same time. If the benchmark is interrupted or a part fails,
    results.json has what was measured until then.
    """
    cpu_only, accelerated = devices_on_cpu(device_a_core=False), has_accelerator()
    for side in SIDES:
        for name in settings.parts:
            file_of(settings, name, side).unlink(missing_ok=True)

    def on_cpu(name: str) -> None:
        measure_in_process(settings, name, "cpu", cpu_only, spared=CORES_OF_ACCELERATOR if accelerated else 0)

    pool = ThreadPoolExecutor(1)
    try:
        waiting = {name: pool.submit(on_cpu, name) for name in settings.parts} if accelerated else {}
        for name in settings.parts:
            measure_in_process(settings, name, "here", {})
            console.say(line_of_rates(name, read(settings, name, "here")))
        for name in settings.parts:
            waiting[name].result() if accelerated else on_cpu(name)
            console.say(line_of_comparison(name, *(read(settings, name, side) for side in SIDES)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # This process asks jax for the names of the devices, whose memory another process may still hold.
        with changed({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}):
            file = write_results("device", settings, {"parts": {name: part_of(settings, name) for name in settings.parts}})
        console.result(f"results: {file}")


def has_accelerator() -> bool:
    """Return whether jax finds a GPU or TPU, asked in a new process so that this one does not hold its memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(jax.default_backend).result() != "cpu"


def measure_in_process(settings: DeviceBench, name: str, side: str, environment: dict[str, str], spared: int = 0) -> None:
    """Measure a part in a new process with these environment variables, which select the devices.

    spared: number of cores that the process does not use, if there are more.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with _STARTING, changed(environment):
            future = process.submit(measure, settings, name, side, spared)
        future.result()


def measure(settings: DeviceBench, name: str, side: str, spared: int) -> None:
    """Write the measurements of a part to its file, each when it is made; `failed` holds a traceback."""
    if hasattr(os, "sched_setaffinity") and (kept := sorted(os.sched_getaffinity(0))[spared:]):
        os.sched_setaffinity(0, kept)
    file, measured = file_of(settings, name, side), Measured()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        for found in PARTS[name](settings, side == "here"):
            for key, value in found.items():
                measured[key] = measured[key] | value if isinstance(measured.get(key), dict) else value
            file.write_text(json.dumps(measured))
    except Exception:  # no failure may cost the measurements of the other parts
        file.write_text(json.dumps(measured | {"failed": traceback.format_exc()}))


def file_of(settings: DeviceBench, name: str, side: str) -> Path:
    """Return the file of a part's measurements."""
    return Path(settings.out) / "parts" / f"{name}-{side}.json"


def read(settings: DeviceBench, name: str, side: str) -> Measured:
    """Return what was measured of a part so far."""
    file = file_of(settings, name, side)
    found: Measured = json.loads(file.read_text()) if file.exists() else {}
    return found


def part_of(settings: DeviceBench, name: str) -> dict[str, Any]:
    """Return both sides of a part, and how far apart their losses are if both were measured."""
    part: dict[str, Any] = {side: read(settings, name, side) for side in SIDES}
    losses = [part[side].get("losses") for side in SIDES]
    return part | ({"losses_apart": relative_difference(*losses)} if all(losses) else {})


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
