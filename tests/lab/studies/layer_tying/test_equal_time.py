"""Tests of the comparison at equal time, computed by hand."""

import numpy as np
import pytest
from layer_runs import findings_of, run


def test_equal_time_is_that_of_the_fastest_method_of_each_seed():
    """Steps count as medians over both seeds: untied 1 s in spite of an outlier; all-one 1.5; the agent 1, then 2, 2, 2.

    Seed 3: untied finishes after 4 s; the agent is then a quarter of the way from step 2 (3 s) to step 4 (7 s).
    """
    findings, runs, rows = findings_of(run())
    assert findings["equal_time_s"] == [4, 4]
    assert {name: row["equal_time_step"] for name, row in rows.items()} == {
        "untied": [4, 4], "agent": [2, 4], "all-one": [2, 2],
    }  # fmt: skip
    expected = {"untied": [2.0, 2.2], "agent": [2.8 - 0.25, 1.9], "all-one": [3.5 - 1 / 3, 3.6 - 1 / 3]}
    for name, row in rows.items():
        assert row["equal_time_loss"] == pytest.approx(expected[name])
    assert rows["untied"]["equal_time_perplexity"]["mean"] == pytest.approx(np.exp(2.1))
    assert runs["validation_seconds"][:, 0].tolist() == [[0, 2, 4], [0, 3, 7], [0, 3, 6]]
    assert runs["validation_seconds"][:, 1].tolist() == [[0, 2, 4], [0, 2, 4], [0, 3, 6]]
