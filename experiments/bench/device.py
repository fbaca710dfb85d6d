"""Training rates of every study on this machine, and a comparison of its results with those of its CPU.

Single seeds of EXor are chaotic: rounding decides on which plateau a seed ends. So the comparison takes the losses of the first
steps and, for full training, the number of seeds that solve the task.
"""

import functools
import multiprocessing
import os
import threading
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from experiments.bench.contender import changed, devices_on_cpu
from experiments.bench.device_parts import PARTS, Measured
from experiments.bench.settings import DeviceBench
from experiments.bench.timing import write_results
from tiejax.lab.runs.console import Console

CORES_OF_ACCELERATOR = 4  # left to the process that uses the accelerator
_STARTING = threading.Lock()  # a process inherits the environment, which is changed while it starts


def run(settings: DeviceBench, console: Console) -> None:
    """Measure every part on the machine's devices and, without rates, on its CPU; write results.json after each part.

    With an accelerator, the CPU computes its parts at the same time. A part that fails is reported in the results.
    """
    accelerated = has_accelerator()
    cpu_only, spared = devices_on_cpu(device_a_core=False), CORES_OF_ACCELERATOR if accelerated else 0
    on_cpu = functools.partial(measure_in_process, settings, environment=cpu_only, rates=False, spared=spared)
    with ThreadPoolExecutor(1) as pool:
        started = {name: pool.submit(on_cpu, name) for name in settings.parts} if accelerated else {}
        parts: dict[str, Any] = {}
        for name in settings.parts:
            here = measure_in_process(settings, name, {}, rates=True)
            cpu = started[name].result() if started else on_cpu(name)
            parts[name] = {"here": here, "cpu": cpu}
            if "failed" not in here and "failed" not in cpu:
                parts[name]["losses_apart"] = relative_difference(here["losses"], cpu["losses"])
            console.say(part_line(name, parts[name]))
            file = write_results("device", settings, {"parts": parts})
    console.result(f"results: {file}")


def has_accelerator() -> bool:
    """Return whether jax finds a GPU or TPU, asked in a new process so that this one does not hold its memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(jax.default_backend).result() != "cpu"


def measure_in_process(settings: DeviceBench, name: str, environment: dict[str, str], rates: bool, spared: int = 0) -> Measured:
    """Return the measurements of a part, made in a new process with these environment variables, which select the devices.

    spared: number of cores that the process does not use, if there are more.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with _STARTING, changed(environment):
            future = process.submit(measure, settings, name, rates, spared)
        return future.result()


def measure(settings: DeviceBench, name: str, rates: bool, spared: int) -> Measured:
    """Return the measurements of a part, or `failed` with the traceback."""
    if hasattr(os, "sched_setaffinity") and (kept := sorted(os.sched_getaffinity(0))[spared:]):
        os.sched_setaffinity(0, kept)
    try:
        return PARTS[name](settings, rates)
    except Exception:  # no failure may cost the measurements of the other parts
        return {"failed": traceback.format_exc()}


def relative_difference(losses: list[float], others: list[float]) -> float:
    """Return the largest difference between two lists of losses, relative to the larger loss of each pair."""
    one, other = np.array(losses), np.array(others)
    return float(np.max(np.abs(one - other) / np.maximum(np.abs(one), np.abs(other))))


def part_line(name: str, part: dict[str, Any]) -> str:
    """Return the line of a part for the terminal."""
    here = part["here"]
    for side, found in (("here", here), ("on the CPU", part["cpu"])):
        if "failed" in found:
            return f"{name}: failed {side}: {found['failed'].splitlines()[-1]}"
    words = [f"losses of the first steps differ from the CPU's by {part['losses_apart']:.1e}"]
    words += [f"{form} failed: {error.splitlines()[-1]}" for form, error in here.get("failures", {}).items()]
    for unit in ("model_steps_per_s", "tokens_per_s", "ms_a_step", "member_steps_per_s"):
        found = here.get(unit, {})
        for form, rate in ({"": found} if "median" in found else found).items():
            words.append(f"{form} {rate['median']:,.1f} {unit.replace('_per_', '/').replace('_', ' ')}".strip())
    if "solved" in here:
        both = ", ".join(f"{arm} {here['solved'][arm]} ({part['cpu']['solved'][arm]} on the CPU)" for arm in here["solved"])
        words.append(f"seeds that solve the task, of {here['seeds']}: {both}")
    return f"{name}: {'; '.join(words)}"
