"""Comparison of methods at equal training time: cumulative seconds, and validation losses when the fastest method ends."""

import numpy as np


def seconds_of(time_step: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """Return the training time of the first 0, 1, ... steps in seconds, `[method, seed, step + 1]`.

    time_step, distinct: seconds and number of distinct layers of each step, `[method, seed, step]`. The time of a
    step is replaced by the median over all steps of its method with the same number of distinct layers, in all seeds, so that
    the load of the machine during a single step (from other programs or other models of the run) does not favour a method.
    """
    taken = np.zeros((*time_step.shape[:2], time_step.shape[2] + 1))
    for times, numbers, seconds in zip(time_step, distinct, taken, strict=True):
        for number in np.unique(numbers):
            seconds[:, 1:][numbers == number] = np.median(times[numbers == number])
    return np.asarray(np.cumsum(taken, axis=-1))


def at_equal_time(seconds: np.ndarray, validation_step: np.ndarray, validation_loss: np.ndarray) -> dict[str, np.ndarray]:
    """Return the validation loss of each method at the time when the fastest method of the seed finished its steps.

    The loss is interpolated linearly in time between validations. seconds: `[method, seed, step + 1]`. Returns `budget`, the
    seconds `[seed]`; `step`, the steps completed by then, and `loss`, both `[method, seed]`.
    """
    budget = seconds[..., -1].min(axis=0)
    step, loss = np.zeros(seconds.shape[:2], int), np.zeros(seconds.shape[:2])
    for method, seed in np.ndindex(seconds.shape[:2]):
        elapsed = seconds[method, seed]
        step[method, seed] = np.searchsorted(elapsed, budget[seed], side="right") - 1
        loss[method, seed] = np.interp(budget[seed], elapsed[validation_step], validation_loss[method, seed])
    return {"budget": budget, "step": step, "loss": loss}
