"""The benchmark of the tests of claims: its numpy side agrees with ours, and what it prints and writes."""

import json

import numpy as np
import pytest

from experiments.bench.settings import StatisticsBench
from experiments.bench.statistics import plain_numpy, run
from tiejax.lab.runs.console import Console
from tiejax.statistics.claims import Claim, assess
from tiejax.statistics.sign_flips import FLIPS


def test_numpy_side_does_the_same_work():
    differences = np.random.default_rng(0).normal(0.2, 1, (3, 40))
    rows = assess([Claim(str(number), "s", "e", d, 1) for number, d in enumerate(differences)])
    for row, (p, *interval) in zip(rows, plain_numpy(differences), strict=True):
        # Six standard errors of two samples of flips, for p and in units of the width for the ends.
        assert p == pytest.approx(row["p"], abs=6 * (2 * row["p"] / FLIPS) ** 0.5)
        assert interval == pytest.approx(row["interval"], abs=0.02 * (interval[1] - interval[0]))


def test_times_are_printed_and_written(tmp_path, capsys):
    run(StatisticsBench(claims=2, seeds=20, out=str(tmp_path)), Console())
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["times"]) == ["assess", "plain numpy, p and 95 % intervals"]
    for times in results["times"].values():
        assert 0 < times["seconds"]["min"] <= times["seconds"]["median"] <= times["seconds"]["max"]
    assert results["largest_difference_of_p"] < 0.02
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 claims x 20 seeds x 99,999 flips"
    assert [line.split(":")[0] for line in lines[2:4]] == list(results["times"])
