"""The diagnosis of a run of ours. Oracles: the run's own arrays, and the instruments applied by hand to one member."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.geometry.alignment import alignment
from tiejax.geometry.equivalence import conditional_distance
from tiejax.runs.console import Console
from tiejax.studies.diagnosis import run as diagnose_run
from tiejax.studies.diagnosis import study as diagnose
from tiejax.studies.exor import task as exor
from tiejax.studies.untying import study as untying

SETTINGS = ["--steps", "30", "--bits", "4", "--seeds", "2", "--record_every", "10", "--exact_every", "10", "--quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosed")
    argv = [*SETTINGS, "--half_period", "10", "--policies", "[copy]", "--out", str(folder / "run")]
    assert untying.main(argv) == 0
    assert diagnose.main([str(folder / "run"), "--out", str(folder / "diagnosis"), "--quiet"]) == 0
    return folder / "run", folder / "diagnosis", json.loads((folder / "diagnosis" / "results.json").read_text())


def test_every_instrument_has_been_used_on_every_member(run):
    path, out, found = run
    assert found["arms"] == ["never-tied-independent", "never-tied-equal", "tied", "copy-output-20"]
    assert (found["kind"], found["seeds"], found["step"]) == ("untying", [0, 1], 30)
    assert [member["tied"] for name in found["arms"] for member in found["alignment"][name]] == [False] * 4 + [True] * 2 + [
        False
    ] * 2
    sets = [row["set"] for row in found["equivalence"]["tied"]]
    assert sets == ["zero pair", "one pair", "even and odd", "a 0 and a 1"]
    assert all(sum(row["cases"].values()) == 2 for row in found["equivalence"]["tied"])
    with np.load(path / "metrics.npz") as metrics:
        late = metrics["step"] >= 10
        expected = np.median(metrics["use_ratio"][2][:, late])
    (row,) = [one for one in found["uses"] if one["published"] == 10.0]
    assert row["tied"]["ratio"] == pytest.approx(expected)
    page = (out / "report.html").read_text()
    for words in ("should these embeddings be tied", "zero pair", "never-tied-equal", "OLMo-1B, published", "data:image/png"):
        assert words in page


def test_numbers_are_those_of_the_members(run):
    path, _, found = run
    opened = diagnose_run.open_run(path, Console(quiet=True))
    tables = [np.asarray(opened.params[part]["embedding"]) for part in ("embed", "head")]
    by_hand = alignment(tables[0][1, 0], tables[1][1, 0])
    assert found["alignment"]["never-tied-independent"][1]["input -> output"]["procrustes"] == pytest.approx(by_hand.procrustes)
    np.testing.assert_array_equal(tables[0][:, 2], tables[1][:, 2])
    to_tied = alignment(tables[0][0, 0], tables[0][0, 2])
    assert found["alignment"]["tied"][0]["untied input -> tied"]["identity"] == pytest.approx(to_tied.identity)
    # The conditional distance of the zero pair, by the exact contexts of the task, for both seeds of the tied arm.
    task, distances = exor.EXor(4, *exor.VARIANTS["main"]), []
    known = exor.contexts(task, ordered=False)
    sizes = np.array([len(rows) for rows in exor.split(4).values()])
    model = diagnose_run.exor.build_model(opened.config)
    for seed in (0, 1):
        params = jax.tree.map(lambda leaf, seed=seed: jnp.asarray(leaf[seed, 2]), opened.params)
        logits = model.apply({"params": params}, jnp.asarray(known.tokens), jnp.asarray(known.position))
        logs = np.asarray(jax.nn.log_softmax(logits))
        distances.append(conditional_distance(logs, (1, 0), sizes @ np.nan_to_num(known.weight)).distance)
    assert found["equivalence"]["tied"][0]["conditional_distance"] == pytest.approx(np.median(distances), rel=1e-4)


def test_contexts_of_models_that_see_the_order_are_a_sample():
    few = diagnose_run.exor_contexts(exor.EXor(7, *exor.VARIANTS["main"]), ordered=True)
    assert few.tokens.shape == (diagnose_run.CONTEXTS, 8)
    assert few.log_ratios[few.pairs["zero pair"][0]].shape == (diagnose_run.CONTEXTS,)
