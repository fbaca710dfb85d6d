"""Each script of docs/examples runs as its first line says, and learns."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from processes import end, start_python

EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "examples").glob("*.py"))
TABLES = (256 * 48, 257 * 48)  # a row of 48 numbers for each byte, and for the mask
FLAGS = ("--seeds", "2", "--steps", "12", "--rates", "[0.002]", "--table_factors", "[1]")


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_learns(script, tmp_path):
    """On four letters, where models begin at log(256) nats a byte; one table of parameters lies between the arms."""
    letters = np.random.default_rng(0).choice(np.frombuffer(b"aeio", np.uint8), 30_000)
    (tmp_path / "text.txt").write_bytes(letters.tobytes())
    ended = end(start_python(script, *FLAGS, "--out", "run", cwd=tmp_path))
    assert ended.status == 0, ended.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    parameters = {arm: cost["parameters"] for arm, cost in results["costs"].items()}
    assert parameters["untied"] - parameters["tied"] in TABLES
    assert parameters["untie-2/3"] == parameters["untied"]
    for arm in parameters:
        losses = results["arms"][arm]["loss"]
        assert len(losses) == 2
        assert all(math.log(4) < loss < 0.95 * math.log(256) for loss in losses), (arm, losses)
