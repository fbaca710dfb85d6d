"""Trajectories of a run made by hand: relative distances, final values, several spellings."""

import math

import numpy as np
import pytest
from exor_runs import DH, MAIN, run_metrics

from tiejax.studies.exor.symbols import Symbols
from tiejax.studies.exor.trajectories import trajectories


def test_relative_distance_divides_by_the_bits_that_occur():
    """In dh, symbol 1 never occurs: only 0-2 and 0-3 make the scale."""

    def distance(table, arm, seed, steps, pair):
        return np.full(len(steps), 100.0 if 1 in pair else 6.0)

    runs = trajectories(run_metrics(symbols=DH, distance=distance), DH, 20_000)
    np.testing.assert_allclose(runs.relative["input"]["one"], 6.0 / 2.0)
    assert "zero" not in runs.relative["input"]


def test_more_than_two_spellings_are_averaged_over_their_pairs():
    symbols = Symbols(7, 4, 5, {"zero": (0, 1, 2), "one": (3,)}, (0.2, 0.3, 0.5, 1.0))

    def distance(table, arm, seed, steps, pair):
        return np.full(len(steps), {(0, 1): 1.0, (0, 2): 2.0, (1, 2): 6.0}.get(pair, 50.0))

    runs = trajectories(run_metrics(symbols=symbols, distance=distance), symbols, 20_000)
    np.testing.assert_allclose(runs.distance["output"]["zero"], 3.0)
    assert symbols.imbalance("zero") == pytest.approx(math.log(2.5))
    assert math.isnan(symbols.imbalance("one"))


def test_final_values_are_means_over_the_last_whole_cycle():
    def distance(table, arm, seed, steps, pair):
        return steps.astype(float)

    runs = trajectories(run_metrics(distance=distance), MAIN, 20_000)
    # Records 30,500, 31,000, ..., 50,000.
    assert runs.final(runs.distance["input"]["zero"])[0, 0] == pytest.approx(np.arange(30_500, 50_001, 500).mean())
    assert runs.final(runs.distance["input"]["zero"], last=True)[0, 0] == 50_000
