"""Solving and first passage against loops over records."""

import numpy as np
import pytest

from tiejax.lab.studies.exor.trajectories import first, solves, solving_window

BAYES = 0.5


def solved_by_loop(steps, losses, window):
    """Return whether and when one member solved the task, by the definition."""
    for start in steps:
        if start + window > steps[-1]:
            break
        inside = [loss for step, loss in zip(steps, losses, strict=True) if start <= step <= start + window]
        if all(loss < BAYES + 0.1 for loss in inside):
            return True, start
    return False, steps[-1]


@pytest.mark.parametrize("seed", range(5))
def test_solving_against_a_loop(seed):
    rng = np.random.default_rng(seed)
    steps = np.arange(0, 101, 10)
    losses = BAYES + rng.choice([0.05, 0.2], p=[0.8, 0.2], size=(2, 30, len(steps)))
    found = solves(steps, losses, BAYES, cycle=40)
    expected = [[solved_by_loop(steps.tolist(), row.tolist(), 40) for row in arm] for arm in losses]
    assert found.happened.tolist() == [[happened for happened, _ in arm] for arm in expected]
    assert found.time.tolist() == [[time for _, time in arm] for arm in expected]
    assert 0 < found.happened.sum() < found.happened.size


def test_solving_by_hand():
    """A member that is near for less than a cycle has not solved the task, nor has one that came near too late."""
    steps = np.arange(0, 60, 10)
    near, far = 0.55, 0.61
    losses = np.array(
        [
            [far, near, near, near, far, far],  # from step 10 to 30: a whole cycle of 20 steps
            [far, near, near, far, near, near],  # twice, for 10 steps
            [far, far, far, far, near, near],  # from 40, but the run ends at 50
            [far, far, far, near, near, near],  # just in time
            [near, near, near, np.nan, near, near],  # before it diverged
            [far, near, np.nan, near, near, far],
        ]
    )
    found = solves(steps, losses, BAYES, cycle=20)
    assert found.happened.tolist() == [True, False, False, True, True, False]
    assert found.time.tolist() == [10, 50, 50, 30, 0, 50]


def test_a_run_of_at_most_one_cycle_is_judged_by_its_second_half():
    steps = np.arange(0, 21, 5)
    assert (solving_window(steps, 30), solving_window(steps, 20), solving_window(steps, 19)) == (10, 10, 19)
    found = solves(steps, np.array([[0.9, 0.9, 0.5, 0.5, 0.5], [0.9, 0.9, 0.9, 0.5, 0.5]]), BAYES, cycle=20)
    assert (found.happened.tolist(), found.time.tolist()) == ([True, False], [10, 20])


def test_first_passage_is_the_first_record_below_and_censored_at_the_end():
    steps = np.array([0, 500, 1000, 1500])
    distances = np.array([[1.0, 0.4, 0.9, 0.2], [1.0, 0.5, 0.5, 0.5], [0.1, 0.1, 0.1, 0.1], [1.0, np.nan, np.nan, 0.3]])
    found = first(steps, distances < 0.5)
    assert found.happened.tolist() == [True, False, True, True]
    assert found.time.tolist() == [500, 1500, 0, 1500]
