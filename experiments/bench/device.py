"""Everything worth knowing of one machine in about ten minutes: rates of every study, and whether it agrees with its CPU.

Single seeds of EXor are chaotic: rounding decides on which plateau a seed ends. So losses of the first steps are compared, and
of whole trainings the number of seeds that solve the task.
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
    """Measure every part on the machine's devices and, without rates, on its CPU; write one results.json."""
    parts: dict[str, Any] = {}
    for name in settings.parts:
        here = measured_in_process(settings, name, {}, rates=True)
        on_cpu = measured_in_process(settings, name, devices_on_cpu(device_a_core=False), rates=False)
        parts[name] = {"here": here, "cpu": on_cpu, "losses_apart": apart(here["losses"], on_cpu["losses"])}
        console.say(part_line(name, parts[name]))
    console.result(f"results: {write_results('device', settings, {'parts': parts})}")


def measured_in_process(settings: DeviceBench, name: str, environment: dict[str, str], rates: bool) -> Measured:
    """Return what one part has measured, in a process of its own, in which jax sees the devices that it is to see."""
    with changed(environment), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(PARTS[name], settings, rates).result()


def apart(losses: list[float], others: list[float]) -> float:
    """Return the largest difference between two lists of losses, relative to the larger loss."""
    one, other = np.array(losses), np.array(others)
    return float(np.max(np.abs(one - other) / np.maximum(np.abs(one), np.abs(other))))


def part_line(name: str, part: dict[str, Any]) -> str:
    """Write what one part has found."""
    here, words = part["here"], [f"losses of the first steps {part['losses_apart']:.1e} from the CPU's"]
    for unit in ("model_steps_per_s", "tokens_per_s", "ms_a_step", "member_steps_per_s"):
        found = here.get(unit, {})
        for form, rate in ({"": found} if "median" in found else found).items():
            words.append(f"{form} {rate['median']:,.1f} {unit.replace('_per_', '/').replace('_', ' ')}".strip())
    if "solved" in here:
        both = ", ".join(
            f"{arm} {here['solved'][arm]} here and {part['cpu']['solved'][arm]} on the CPU" for arm in here["solved"]
        )
        words.append(f"of {here['seeds']} seeds solve the task: {both}")
    return f"{name}: {'; '.join(words)}"
