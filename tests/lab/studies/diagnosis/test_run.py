"""The diagnosis of a run, compared with the run's own arrays and with measures computed by hand for one member."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.geometry.alignment import alignment
from tiejax.geometry.equivalence import conditional_distance
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.diagnosis.open_run import open_run
from tiejax.lab.studies.diagnosis.run import MEASURES, _by_set, diagnose_run
from tiejax.lab.studies.diagnosis.settings import STUDY, Settings
from tiejax.lab.studies.exor import contexts, ensemble
from tiejax.lab.studies.exor.task import VARIANTS, EXor

pytestmark = pytest.mark.slow


def opened(run):
    return open_run(Settings(checkpoint=str(run)), Console(quiet=True))


@pytest.fixture(scope="module")
def diagnosis(launched, untying_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("diagnosis") / "out"
    assert launched(STUDY, [str(untying_run), "--out", str(out), "--quiet"]) == 0
    return out, json.loads((out / "results.json").read_text())


def test_every_measure_of_every_member(untying_run, diagnosis):
    out, results = diagnosis
    assert results["arms"] == ["never-tied-independent", "never-tied-equal", "tied", "copy-output-20"]
    assert (results["kind"], results["seeds"], results["step"]) == ("untying", [0, 1], 30)
    tied = [member["tied"] for name in results["arms"] for member in results["alignment"][name]]
    assert tied == [False] * 4 + [True] * 2 + [False] * 2
    sets = [row["set"] for row in results["equivalence"]["tied"]]
    assert sets == ["zero pair", "one pair", "even and odd", "a 0 and a 1"]
    assert all(sum(row["cases"].values()) == 2 for row in results["equivalence"]["tied"])
    with np.load(untying_run / "metrics.npz") as metrics:
        late = metrics["step"] >= 10
        expected = np.median(metrics["use_ratio"][2][:, late])
    (row,) = [row for row in results["uses"] if row["published"] == 10.0]
    assert row["tied"]["ratio"] == pytest.approx(expected)
    page = (out / "report.html").read_text()
    for words in ("should these embeddings be tied", "zero pair", "never-tied-equal", "OLMo-1B, published", "data:image/png"):
        assert words in page


def test_values_match_those_computed_by_hand(untying_run, diagnosis):
    results, run = diagnosis[1], opened(untying_run)
    first, second = (np.asarray(run.params[part]["embedding"]) for part in ("embed", "head"))
    by_hand = alignment(first[1, 0], second[1, 0]).procrustes
    scores = results["alignment"]["never-tied-independent"][1]["input -> output"]
    assert scores["procrustes"] == pytest.approx(by_hand)
    np.testing.assert_array_equal(first[:, 2], second[:, 2])
    to_tied = alignment(first[0, 0], first[0, 2])
    assert results["alignment"]["tied"][0]["untied input -> tied"]["identity"] == pytest.approx(to_tied.identity)
    # The conditional distance of the zero pair, by the exact contexts of the task, for both seeds of the tied arm.
    task, distances = EXor(4, *VARIANTS["main"]), []
    known = contexts.all_contexts(task, ordered=False)
    weight = contexts.over_all_strings(task, known)
    model = ensemble.build_model(run.settings)
    for seed in (0, 1):
        params = jax.tree.map(lambda leaf, seed=seed: jnp.asarray(leaf[seed, 2]), run.params)
        logits = model.apply({"params": params}, jnp.asarray(known.tokens), jnp.asarray(known.position))
        logs = np.asarray(jax.nn.log_softmax(logits))
        distances.append(conditional_distance(logs, (1, 0), weight / weight.sum())[0])
    assert results["equivalence"]["tied"][0]["conditional_distance"] == pytest.approx(np.median(distances), rel=1e-4)


def test_the_bias_of_the_logits_counts(untying_run):
    """The conditional distance of the zero pair, from logits with a bias; the optimality residual is not defined then."""
    run = opened(untying_run)
    bias = np.random.default_rng(0).normal(size=(2, len(run.arms), run.params["head"]["embedding"].shape[2]))
    biased = run._replace(params=run.params | {"head": run.params["head"] | {"bias": bias}})
    (row, *_) = diagnose_run(biased, Settings(checkpoint=str(untying_run)))["equivalence"]["tied"]
    known = contexts.all_contexts(task := EXor(4, *VARIANTS["main"]), ordered=False)
    weight, model, distances = contexts.over_all_strings(task, known), ensemble.build_model(run.settings), []
    for seed in (0, 1):
        params = jax.tree.map(lambda leaf, seed=seed: jnp.asarray(leaf[seed, 2]), run.params)
        logits = model.apply({"params": params}, jnp.asarray(known.tokens), jnp.asarray(known.position)) + bias[seed, 2]
        distances.append(conditional_distance(np.asarray(jax.nn.log_softmax(logits)), (1, 0), weight / weight.sum())[0])
    assert row["conditional_distance"] == pytest.approx(np.median(distances), rel=1e-4)
    assert row["residual_rms"] is None


@pytest.mark.slow
def test_run_on_text(launched, text_run, tmp_path):
    """Every set of pairs is measured in both arms."""
    assert launched(STUDY, [str(text_run), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["kind"] == "text_mlm"
    assert [row["set"] for row in results["equivalence"]["untied"]] == ["twins .5", "twins .1", "unrelated"]
    tied = [member["tied"] for name in ("untied", "tied") for member in results["alignment"][name]]
    assert tied == [False, False, True, True]


def test_text_probes_have_planted_twins_and_pairs(text_run):
    asked = opened(text_run).probes
    (mask,) = np.unique(asked.tokens[np.arange(len(asked.position)), asked.position])
    assert (asked.tokens == mask).sum() == len(asked.tokens)
    (word, twin), *_ = asked.pairs["twins .1"]
    assert asked.log_ratios[word, twin][0] == pytest.approx(np.log(9))
    assert np.isin(asked.tokens, [twin for _, twin in asked.log_ratios]).any()


def test_the_median_of_a_set_counts_members_without_a_limit():
    """An infinite condition number is a number: it is left out only if it is not defined."""
    infinite = [dict.fromkeys(MEASURES, 1.0) | {"case": "x", "condition_number": value} for value in (np.inf, np.inf, 50.0)]
    (found,) = _by_set({"pairs": ["pair"]}, [[row] for row in infinite])
    assert found["condition_number"] == np.inf
    (found,) = _by_set({"pairs": ["pair"]}, [[row | {"condition_number": np.nan}] for row in infinite])
    assert found["condition_number"] is None
