"""Dose and response: slopes against NumPy, entries against the analysis of one task, a run from command to page."""

import json
import math

import numpy as np
import pytest
from exor_runs import as_the_paper_says, run_metrics

from tiejax.lab.runs import entry
from tiejax.lab.studies.exor.claim_values import Setup
from tiejax.lab.studies.exor.dose_response import analyse_doses, slopes
from tiejax.lab.studies.exor.settings import STUDY
from tiejax.lab.studies.exor.task import EXor

pytestmark = pytest.mark.slow


def test_slopes_against_polyfit():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=5), rng.normal(size=(5, 3))
    np.testing.assert_allclose(slopes(x, y), [np.polyfit(x, column, 1)[0] for column in y.T], rtol=1e-12)


def run(out, *argv):
    small = [
        "--steps",
        "40",
        "--record_every",
        "10",
        "--half_period",
        "10",
        "--bits",
        "4",
        "--layers",
        "1",
        "--seeds",
        "6",
        "--quiet",
    ]
    assert entry.main(STUDY, [*small, "--out", str(out), *argv]) == 0
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def doses(tmp_path_factory):
    out = tmp_path_factory.mktemp("doses") / "run"
    return out, run(out, "--doses", "[.5,.8,.3]")


@pytest.mark.slow
def test_each_dose_is_analysed_like_a_separate_task(doses, tmp_path):
    """Claims and final values of the second dose equal those of a run with only that distribution."""
    _, results = doses
    alone = run(tmp_path / "alone", "--zero", "[.8,.2]")
    entry = results["doses"][1]
    assert entry["p"] == 0.8
    assert entry["bayes_cross_entropy"] == pytest.approx(alone["bayes"]["splits"]["train"]["cross_entropy"], rel=1e-12)
    for name in ("untied", "tied"):
        for measure in ("exact_cross_entropy", "relative_distance"):
            ours, expected = entry["final"][name][measure], alone["final"][name][measure]
            for part, values in expected.items():
                values, found = (values.values(), ours[part].values()) if isinstance(values, dict) else ([values], [ours[part]])
                for one, other in zip(found, values, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-4)
    assert [row["id"] for row in entry["claims"]] == [row["id"] for row in alone["claims"]]
    costs = {row["id"]: row["estimate"] for row in results["claims"]}
    expected = next(row["estimate"] for row in alone["claims"] if row["id"] == "tying-costs")
    np.testing.assert_allclose(costs["tying-costs/0.8"], expected, rtol=1e-3)


def test_claims_cover_every_dose_with_a_conflict(doses):
    _, results = doses
    rows = {row["id"]: row for row in results["claims"]}
    gaps = {f"output-gap/{name}/{dose}" for name in ("untied", "tied") for dose in ("0.8", "0.3")}
    assert set(rows) == {"dose-cost", *(f"tying-costs/{p}" for p in (0.5, 0.8, 0.3)), *gaps}
    assert f"{math.log(4):.3f}" in rows["output-gap/tied/0.8"]["statement"]
    assert f"{math.log(7 / 3):.3f}" in rows["output-gap/tied/0.3"]["statement"]
    # The slope over doses by NumPy, from the values of each seed.
    bound = [0.0, math.log(4), math.log(7 / 3)]
    cost = [
        np.subtract(*(entry["final"][name]["exact_cross_entropy"]["train"] for name in ("tied", "untied")))
        for entry in results["doses"]
    ]
    expected = np.mean([np.polyfit(bound, column, 1)[0] for column in np.array(cost).T])
    np.testing.assert_allclose(rows["dose-cost"]["estimate"], expected, rtol=1e-6)


def test_metrics_and_page_contain_the_doses(doses):
    out, results = doses
    with np.load(out / "metrics.npz") as metrics:
        np.testing.assert_array_equal(metrics["dose"], np.repeat([0.5, 0.8, 0.3], 6))
        np.testing.assert_array_equal(metrics["seeds"], np.tile(np.arange(6), 3))
        assert metrics["train_loss"].shape == (2, 18, 5)
    page = (out / "report.html").read_text()
    assert "dose and response" in page
    assert page.count("data:image/png") == 2
    assert {path.stem for path in (out / "figures").iterdir()} == {"dose_gap", "dose_cost"}
    assert results["variant"] == "doses"


@pytest.mark.slow
def test_nothing_is_claimed_if_all_members_diverged(tmp_path, capsys):
    results = run(tmp_path / "run", "--doses", "[.5,.8]", "--learning_rate", "1e30")
    assert results["seeds"] == results["excluded_seeds"] == list(range(6))
    assert len(results["non_finite"]) == 24
    assert results["claims"] == []
    assert "tied seed 5 became non-finite" in capsys.readouterr().err


def synthetic(doses, change=lambda metrics: None, **fields):
    """Return the analysis of synthetic runs of four seeds at each dose, with the same values at all of them."""
    runs = [run_metrics(seeds=4, distance=as_the_paper_says) for _ in doses]
    metrics = {
        name: np.concatenate([run[name] for run in runs], axis=1) if values.ndim > 2 else values
        for name, values in runs[0].items()
    }
    metrics["seeds"] = np.tile(np.arange(4), len(doses))
    change(metrics)
    setups = [Setup(EXor(7, (p, 1 - p), (0.5, 0.5)), 0.5, 20_000, **fields) for p in doses]
    return analyse_doses(metrics, setups, [[]] * len(doses))


def test_only_solved_models_are_compared_with_the_bound():
    def change(metrics):
        metrics["exact_cross_entropy"][0, 5] = 0.9  # untied seed 1 at the second dose
        metrics["exact_gap_zero"][0, 5] = -100

    found, responses = synthetic([0.5, 0.8], change)
    rows = {row["id"]: row for row in found["claims"]}
    assert responses.solved[1, 0].tolist() == [True, False, True, True]
    expected = [2.5 + 0.01 * seed - math.log(4) for seed in (0, 2, 3)]
    np.testing.assert_allclose(rows["output-gap/untied/0.8"]["differences"], expected)
    assert rows["output-gap/tied/0.8"]["n"] == 4
    assert "output-gap/tied/0.5" not in rows  # no conflict, no bound
    assert not any(
        name.startswith("output-gap") for name in {row["id"] for row in synthetic([0.5, 0.8], output_bias=True)[0]["claims"]}
    )


def test_a_diverged_member_has_the_worst_loss_of_its_dose_and_stays():
    def change(metrics):
        metrics["finite"][1, 6, 3:] = False  # tied seed 2 at the second dose
        metrics["exact_cross_entropy"][1, 6, 3:] = np.nan
        metrics["exact_cross_entropy"][0, 7] = 0.95

    found, responses = synthetic([0.5, 0.8], change)
    assert (found["seeds"], found["excluded_seeds"]) == ([0, 1, 2, 3], [2])
    cost = {row["id"]: row["differences"] for row in found["claims"]}["tying-costs/0.8"]
    np.testing.assert_allclose(cost, [0, 0, 0.95 - 0.552, 0.553 - 0.95])
    assert not responses.solved[1, 1, 2]
    assert all(row["family"] == "exploratory" for entry in found["doses"] for row in entry["claims"])


@pytest.mark.slow
def test_records_on_disk_give_the_same_results_as_in_memory(doses, tmp_path):
    _, expected = doses
    found = run(tmp_path / "disk", "--doses", "[.5,.8,.3]", "--records_on", "disk")
    assert list((tmp_path / "disk" / "checkpoints" / "records").iterdir())
    for name in ("doses", "claims", "seeds", "non_finite"):
        assert found[name] == expected[name], name
