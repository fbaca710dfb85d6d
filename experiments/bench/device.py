"""Training rates of every study on this machine, and a comparison of its results with those of its CPU.

Single seeds of EXor are chaotic: rounding decides on which plateau a seed ends. So the comparison takes the losses of the first
steps and, for full training, the number of seeds that solve the task.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from experiments.bench.contender import changed, devices_on_cpu
from experiments.bench.device_parts import PARTS, Measured
from experiments.bench.settings import DeviceBench
from experiments.bench.timing import write_results
from tiejax.lab.runs.console import Console


def run(settings: DeviceBench, console: Console) -> None:
    """Measure every part on the machine's devices and, without rates, on its CPU; write results.json."""
    parts: dict[str, Any] = {}
    for name in settings.parts:
        here = measure_in_process(settings, name, {}, rates=True)
        on_cpu = measure_in_process(settings, name, devices_on_cpu(device_a_core=False), rates=False)
        parts[name] = {"here": here, "cpu": on_cpu, "losses_apart": relative_difference(here["losses"], on_cpu["losses"])}
        console.say(part_line(name, parts[name]))
    console.result(f"results: {write_results('device', settings, {'parts': parts})}")


def measure_in_process(settings: DeviceBench, name: str, environment: dict[str, str], rates: bool) -> Measured:
    """Return the measurements of a part, made in a new process with these environment variables, which select the devices."""
    with changed(environment), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(PARTS[name], settings, rates).result()


def relative_difference(losses: list[float], others: list[float]) -> float:
    """Return the largest difference between two lists of losses, relative to the larger loss of each pair."""
    one, other = np.array(losses), np.array(others)
    return float(np.max(np.abs(one - other) / np.maximum(np.abs(one), np.abs(other))))


def part_line(name: str, part: dict[str, Any]) -> str:
    """Return the line of a part for the terminal."""
    here, words = part["here"], [f"losses of the first steps differ from the CPU's by {part['losses_apart']:.1e}"]
    for unit in ("model_steps_per_s", "tokens_per_s", "ms_a_step", "member_steps_per_s"):
        found = here.get(unit, {})
        for form, rate in ({"": found} if "median" in found else found).items():
            words.append(f"{form} {rate['median']:,.1f} {unit.replace('_per_', '/').replace('_', ' ')}".strip())
    if "solved" in here:
        both = ", ".join(f"{arm} {here['solved'][arm]} ({part['cpu']['solved'][arm]} on the CPU)" for arm in here["solved"])
        words.append(f"seeds that solve the task, of {here['seeds']}: {both}")
    return f"{name}: {'; '.join(words)}"
