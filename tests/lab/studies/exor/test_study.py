"""EXor from command to page, including edge cases of its settings."""

import json

import numpy as np
import pytest

from tiejax.lab.runs import entry
from tiejax.lab.studies.exor.settings import STUDY

TINY = ["--steps", "20", "--record_every", "10", "--exact_every", "10", "--quiet"]


def run(tmp_path, *argv):
    out = tmp_path / "run"
    assert entry.main(STUDY, [*TINY, "--out", str(out), *argv]) == 0
    results = json.loads((out / "results.json").read_text())
    with np.load(out / "metrics.npz", allow_pickle=False) as arrays:
        return out, results, dict(arrays)


def lengths(final):
    """Return the lengths of all lists in a nested dict."""
    if isinstance(final, dict):
        return {n for value in final.values() for n in lengths(value)}
    return {len(final)} if final is not None else set()


def test_run_writes_the_documented_files(tmp_path, capsys):
    out, results, metrics = run(tmp_path, "--seeds", "[7,3]")
    said = "warning: --seeds: 2 seeds cannot decide any claim; that takes at least 6"
    assert capsys.readouterr() == (f"report: {out / 'report.html'}\n", f"{said}\n")
    names = {path.name for path in out.iterdir()} - {".lock"}
    written = {"report.html", "results.json", "metrics.npz", "run.json", "config.yaml", "environment.json"}
    assert names == written | {"figures", "checkpoints"}
    assert {path.suffix for path in (out / "figures").iterdir()} == {".png", ".pdf"}
    keys = {
        "experiment",
        "variant",
        "model",
        "seeds",
        "excluded_seeds",
        "steps",
        "bayes",
        "final",
        "solved",
        "solve_time",
        "solving_window",
        "plateaus",
        "claims",
        "timing",
    }
    assert keys <= set(results)
    assert (results["experiment"], results["variant"], results["seeds"], results["steps"]) == ("exor", "main", [7, 3], 20)
    assert round(results["bayes"]["cross_entropy"], 4) == 0.5077
    assert set(results["final"]["untied"]["exact_cross_entropy"]) == {"train", "validation", "test"}
    assert {"zero", "one"} <= set(results["final"]["tied"]["relative_distance"]["output"])
    assert lengths(results["final"]) == {2}
    fields = {"id", "statement", "estimand", "estimate", "interval", "interval_adjusted", "p", "p_adjusted", "n", "verdict"}
    assert all(fields <= set(row) for row in results["claims"])
    assert results["plateaus"]["levels"][0]["loss"] == pytest.approx(results["bayes"]["splits"]["train"]["cross_entropy"])
    assert results["solving_window"] == 10
    assert {"compile_s", "train_s", "model_steps_per_s"} == set(results["timing"])
    # [arm, seed, record, pair]; the last cycle has the last two records.
    assert metrics["distance_input"].shape == (2, 2, 3, 21)
    np.testing.assert_allclose(
        results["final"]["tied"]["distance"]["output"]["zero"], metrics["distance_output"][1, :, 1:, 0].mean(1), rtol=1e-6
    )
    np.testing.assert_allclose(
        results["final"]["untied"]["exact_accuracy"]["train"],
        metrics["exact_accuracy"][0, :, metrics["exact_step"] > 0, 0].mean(0),
        rtol=1e-6,
    )


EDGES = {
    "no validation string at all": "--bits 2 --seeds 6",
    "no pair, one seed, another model": "--zero [1] --one [1] --seeds [5] --model mixer --bits 4",
    "one step": "--zero [.2,.3,.5] --one [.5,.5,0] --bits 4 --steps 1 --seeds 2",
    "a cycle within a record": "--half_period 3 --seeds 6 --batch_size 8 --model lstm --bits 4",
}


@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES)
def test_edge_cases_of_settings(tmp_path, edge):
    argv = EDGES[edge].split()
    out, results, _ = run(tmp_path, *argv)
    page = (out / "report.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert page.count("data:image/png") == len(list((out / "figures").glob("*.png"))) > 0
    assert len(results["seeds"]) == (1 if "[5]" in argv else int(argv[argv.index("--seeds") + 1]))


@pytest.mark.slow
def test_non_finite_members_are_named(tmp_path, capsys):
    out, results, metrics = run(tmp_path, "--seeds", "2", "--learning_rate", "1e30")
    assert results["seeds"] == results["excluded_seeds"] == [0, 1]
    assert {(row["arm"], row["seed"]) for row in results["non_finite"]} == {
        (arm, seed) for arm in ("untied", "tied") for seed in (0, 1)
    }
    assert metrics["finite"][:, :, 0].all()
    output = capsys.readouterr().err
    assert "warning: tied seed 1 became non-finite (seen at step 10)" in output
    assert "excluded" not in output  # they stay in all comparisons, here as the only ones
    page = (out / "report.html").read_text()
    assert "untied seed 0 (at step 10)" in page


@pytest.mark.slow
def test_exact_risk_is_omitted_if_there_are_too_many_contexts(tmp_path, capsys):
    _, results, metrics = run(tmp_path, "--seeds", "1", "--model", "mixer", "--bits", "10", "--steps", "1")
    assert "warning: exact risk is not computed: 5,237,760 contexts exceed the limit of 1,048,576" in capsys.readouterr().err
    assert results["final"]["tied"]["exact_cross_entropy"] is None
    assert results["solved"] is None
    assert not [name for name in metrics if name.startswith("exact_")]
