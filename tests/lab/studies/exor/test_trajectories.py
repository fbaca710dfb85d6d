"""Trajectories of a synthetic run: relative distances, final values, several spellings."""

import math

import numpy as np
import pytest
from exor_runs import DH, MAIN, run_metrics

from tiejax.lab.studies.exor import trajectories as module
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.exor.trajectories import trajectories


def test_relative_distance_is_normalised_by_used_symbols():
    """In dh, symbol 1 is unused: the scale is the mean of the distances 0-2 and 0-3."""

    def distance(table, arm, seed, steps, pair):
        return np.full(len(steps), 100.0 if 1 in pair else 6.0)

    runs = trajectories(run_metrics(task=DH, distance=distance), DH, 20_000)
    np.testing.assert_allclose(runs.relative["input"]["one"], 6.0 / 2.0)
    assert "zero" not in runs.relative["input"]


def test_more_than_two_spellings_are_averaged_over_their_pairs():
    task = EXor(7, (0.2, 0.3, 0.5), (1.0,))

    def distance(table, arm, seed, steps, pair):
        return np.full(len(steps), {(0, 1): 1.0, (0, 2): 2.0, (1, 2): 6.0}.get(pair, 50.0))

    runs = trajectories(run_metrics(task=task, distance=distance), task, 20_000)
    np.testing.assert_allclose(runs.distance["output"]["zero"], 3.0)
    assert task.imbalance("zero") == pytest.approx(math.log(2.5))
    assert math.isnan(task.imbalance("one"))


def test_final_values_are_means_over_the_last_whole_cycle():
    def distance(table, arm, seed, steps, pair):
        return steps.astype(float)

    runs = trajectories(run_metrics(distance=distance), MAIN, 20_000)
    # Records 30,500, 31,000, ..., 50,000.
    assert runs.final(runs.distance["input"]["zero"])[0, 0] == pytest.approx(np.arange(30_500, 50_001, 500).mean())


@pytest.mark.parametrize("places", [[], [2], [0, 1, 3]])
@pytest.mark.parametrize("block", [1, 4000, 10**9])
def test_trajectories_on_disk_equal_those_in_memory(monkeypatch, tmp_path, block, places):
    """Blocks of one, some or all records, of no, one or some seeds, against all seeds at once in memory."""
    values = np.random.default_rng(0).uniform(1, 2, (4, 101, 7, 7))

    def distance(table, arm, seed, steps, pair):
        return values[seed, : len(steps), pair[0], pair[1]] + arm + (table == "output")

    metrics = run_metrics(distance=distance, seeds=4)
    chosen = np.isin(np.arange(4), places)
    whole = trajectories(metrics, MAIN, 20_000)
    monkeypatch.setattr(module, "BLOCK", block)
    found = trajectories(metrics, MAIN, 20_000, chosen, tmp_path)
    assert (found.window, found.steps.tolist()) == (whole.window, whole.steps.tolist())
    for computed, expected in (
        (found.distance, whole.distance),
        (found.relative, whole.relative),
        ({"": found.exact}, {"": whole.exact}),
    ):
        for table, arrays in expected.items():
            assert computed[table].keys() == arrays.keys()
            for name, array in arrays.items():
                np.testing.assert_allclose(computed[table][name], array[:, places], rtol=1e-13)
    assert list(tmp_path.iterdir()) == []
