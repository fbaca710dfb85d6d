"""Trajectories of an EXor run: distances over training by table and pair, exact risks, and final values by seed; and events:
when a member solves the task, and when a pair of symbols first comes near.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tiejax.geometry.distances import group_pairs, mean_distance
from tiejax.lab.studies.exor.task import EXor
from tiejax.system.scratch import scratch_array

TABLES = ("input", "output")
BLOCK = 2**27  # bytes of distances read at a time
SOLVED_WITHIN = 0.1  # nats above the Bayes cross-entropy
THRESHOLDS = (0.5, 0.25, 0.1)  # relative distances whose first passage is timed


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """Distances by table and pair over training, each `[arm, seed, record]`, and exact risks.

    relative: distance divided by the mean distance between used spellings of 0 and of 1 in the same table.
    window: first step of the last whole learning-rate cycle; final values are means over the records after it.
    exact: by name, `[arm, seed, exact record, ...]` at `exact_steps`; empty if no exact risk was computed.
    """

    steps: np.ndarray
    window: int
    distance: Mapping[str, Mapping[str, np.ndarray]]
    relative: Mapping[str, Mapping[str, np.ndarray]]
    exact_steps: np.ndarray
    exact: Mapping[str, np.ndarray]

    def final(self, values: np.ndarray, exact: bool = False) -> np.ndarray:
        """Return `values` `[arm, seed, record, ...]` averaged over the window."""
        steps = self.exact_steps if exact else self.steps
        inside = steps > self.window
        return values[:, :, inside if inside.any() else [-1]].mean(2)


def trajectories(
    metrics: Mapping[str, np.ndarray],
    task: EXor,
    cycle: int,
    chosen: np.ndarray | None = None,
    scratch: Path | None = None,
) -> Trajectories:
    """Compute the trajectories of a run; `cycle` is the length of a learning-rate cycle in steps.

    chosen: boolean mask over the seed axis (default: all seeds). scratch: folder for the resulting arrays (default: memory).
    Records are read and trajectories written in blocks of records, the order in which both are stored in files.
    """
    places = np.arange(len(metrics["seeds"])) if chosen is None else np.flatnonzero(chosen)
    between = group_pairs(task.used["zero"], task.used["one"])
    groups = {
        "zero": group_pairs(task.used["zero"]),
        "one": group_pairs(task.used["one"]),
        "even_odd": [(task.even, task.odd)],
    }
    distance: dict[str, dict[str, np.ndarray]] = {}
    relative: dict[str, dict[str, np.ndarray]] = {}
    for table in TABLES:
        recorded = metrics[f"distance_{table}"]
        distance[table] = {name: _allocate(recorded[..., 0], len(places), scratch) for name, pairs in groups.items() if pairs}
        relative[table] = {name: _allocate(recorded[..., 0], len(places), scratch) for name in distance[table]}
        for block in blocks_of_records(recorded):
            distances = recorded[:, :, block][:, places].astype(float)
            scale = mean_distance(distances, task.vocabulary, between)
            for name, values in distance[table].items():
                values[:, :, block] = mean_distance(distances, task.vocabulary, groups[name])
                relative[table][name][:, :, block] = values[:, :, block] / scale
    steps = metrics["step"]
    recorded_risks = {name.removeprefix("exact_"): metrics[name] for name in metrics if name.startswith("exact_")}
    exact_steps = recorded_risks.pop("step", np.zeros(0)).astype(float)
    exact = {name: _allocate(values, len(places), scratch) for name, values in recorded_risks.items()}
    for name, values in recorded_risks.items():
        for block in blocks_of_records(values):
            exact[name][:, :, block] = values[:, :, block][:, places]
    return Trajectories(steps, max(int(steps[-1]) - cycle, 0), distance, relative, exact_steps, exact)


def blocks_of_records(values: np.ndarray) -> list[slice]:
    """Split the record axis of `[arm, seed, record, ...]` into slices of at most `BLOCK` bytes, or of one record."""
    records = values.shape[2]
    rows = max(1, BLOCK * records // max(1, values.nbytes))
    return [slice(start, start + rows) for start in range(0, records, rows)]


def _allocate(values: np.ndarray, seeds: int, scratch: Path | None) -> np.ndarray:
    """Return an empty array shaped like `values` `[arm, seed, record, ...]` but with `seeds` seeds, stored record by record."""
    arms, _, records, *rest = values.shape
    return np.moveaxis(scratch_array((records, seeds, arms, *rest), scratch), (2, 1, 0), (0, 1, 2))


class Events(NamedTuple):
    """An event by member: whether it happened, and the step of the record at which it did.

    The time of an event that did not happen is the last step, at which it is censored.
    """

    happened: np.ndarray
    time: np.ndarray


def solving_window(steps: np.ndarray, cycle: int) -> int:
    """Return the number of steps for which a solved member must stay near the Bayes loss.

    It is one cycle of the learning rate. A run of at most one cycle cannot contain a whole cycle after its start, so that half
    of its steps are used instead.
    """
    length = int(steps[-1] - steps[0])
    return cycle if length > cycle else length // 2


def solves(steps: np.ndarray, losses: np.ndarray, bayes: float, cycle: int) -> Events:
    """Return when members solve the task: the first record from which the loss stays within .1 nat of Bayes for a whole cycle.

    A window that the run does not contain is not judged, so that the latest possible time is the last step less the window (see
    `solving_window`). losses: exact cross-entropy, `[..., record]`; a loss that is not finite is not near.
    """
    near = losses < bayes + SOLVED_WITHIN  # False for NaN
    window = solving_window(steps, cycle)
    happened = np.zeros_like(near)
    for record in np.flatnonzero(steps + window <= steps[-1]):
        inside = (steps >= steps[record]) & (steps <= steps[record] + window)
        happened[..., record] = near[..., inside].all(-1)
    return first(steps, happened)


def first(steps: np.ndarray, happened: np.ndarray) -> Events:
    """Return the events of the first record at which `happened` `[..., record]` is true."""
    ever = np.asarray(happened.any(-1))
    return Events(ever, np.where(ever, steps[happened.argmax(-1)], steps[-1]).astype(float))
