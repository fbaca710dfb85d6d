"""Methods compared in the same time: how long the steps of each took, and its validation loss when the fastest was done."""

import numpy as np


def seconds_of(time_step: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """Return the seconds that `[method, seed, step]` take in training up to 0, 1, ... steps, `[method, seed, step + 1]`.

    A step counts for the median of all steps of its method, over all seeds, that had as many distinct layers: what else the
    machine did while one of them was made, or that no other model was left to share it, is no merit of a method.
    """
    taken = np.zeros((*time_step.shape[:2], time_step.shape[2] + 1))
    for times, numbers, seconds in zip(time_step, distinct, taken, strict=True):
        for number in np.unique(numbers):
            seconds[:, 1:][numbers == number] = np.median(times[numbers == number])
    return np.asarray(np.cumsum(taken, axis=-1))


def at_equal_time(seconds: np.ndarray, validation_step: np.ndarray, validation_loss: np.ndarray) -> dict[str, np.ndarray]:
    """Return each method's validation loss in the time that the fastest method of the seed took for all its steps.

    The loss is interpolated linearly in time between validations. seconds: `[method, seed, step + 1]`. budget: `[seed]`;
    step, loss: `[method, seed]`, step being how many had been done.
    """
    budget = seconds[..., -1].min(axis=0)
    step, loss = np.zeros(seconds.shape[:2], int), np.zeros(seconds.shape[:2])
    for method, seed in np.ndindex(seconds.shape[:2]):
        of_model = seconds[method, seed]
        step[method, seed] = np.searchsorted(of_model, budget[seed], side="right") - 1
        loss[method, seed] = np.interp(budget[seed], of_model[validation_step], validation_loss[method, seed])
    return {"budget": budget, "step": step, "loss": loss}
