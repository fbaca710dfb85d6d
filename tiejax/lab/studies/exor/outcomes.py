"""When a member solves the task, and when a pair of symbols first comes near: events over training, censored at its end.

`[..., record]` arrays hold one trajectory per member. Events are known to a record: their time is the step of a record.
"""

from typing import NamedTuple

import numpy as np

from tiejax.lab.studies.exor.trajectories import SOLVED_WITHIN

THRESHOLDS = (0.5, 0.25, 0.1)  # relative distances whose first passage is timed


class Events(NamedTuple):
    """An event by member: whether it happened, and when. The time of an event that did not happen is the last step."""

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

    Args:
        steps: step of each record.
        losses: exact cross-entropy, `[..., record]`; a loss that is not finite is not near.
        bayes: cross-entropy of the Bayes predictor.
        cycle: steps per cycle of the learning rate; see `solving_window`.

    Returns:
        The events. A window that the run does not contain is not judged, so that the latest possible time is the last step less
        the window; the time of members that do not solve the task is the last step.
    """
    near = losses < bayes + SOLVED_WITHIN  # False for NaN
    window = solving_window(steps, cycle)
    happened = np.zeros_like(near)
    for record in np.flatnonzero(steps + window <= steps[-1]):
        inside = (steps >= steps[record]) & (steps <= steps[record] + window)
        happened[..., record] = near[..., inside].all(-1)
    return first(steps, happened)


def first_passage(steps: np.ndarray, distances: np.ndarray, threshold: float) -> Events:
    """Return when the distances `[..., record]` of a pair are first below a threshold."""
    return first(steps, distances < threshold)


def first(steps: np.ndarray, happened: np.ndarray) -> Events:
    """Return the events of the first record at which `happened` `[..., record]` is true."""
    ever = np.asarray(happened.any(-1))
    return Events(ever, np.where(ever, steps[happened.argmax(-1)], steps[-1]).astype(float))
