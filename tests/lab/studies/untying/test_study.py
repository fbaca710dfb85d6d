"""Untying from command to page: tied and untied phases of the members, and resumption."""

import json

import numpy as np
import pytest

from tiejax import training
from tiejax.lab.runs import entry, resume
from tiejax.lab.studies.exor.ensemble import build_ensemble
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.untying.settings import STUDY
from tiejax.lab.studies.untying.study import conclude

pytestmark = pytest.mark.slow

TINY = [
    "--steps",
    "40",
    "--bits",
    "4",
    "--layers",
    "1",
    "--record_every",
    "10",
    "--exact_every",
    "10",
    "--half_period",
    "10",
    "--quiet",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("untying") / "run"
    argv = [*TINY, "--seeds", "6", "--policies", "[copy,zero]", "--new", "[input]", "--out", str(out)]
    assert entry.main(STUDY, argv) == 0
    with np.load(out / "metrics.npz") as metrics:
        return out, json.loads((out / "results.json").read_text()), dict(metrics)


def test_run_has_a_curve_for_each_policy(run):
    out, results, metrics = run
    assert metrics["untie_step"].tolist() == [-1, 0, 40, 20, 20]
    assert metrics["train_loss"].shape == (5, 6, 5)
    assert [curve["curve"] for curve in results["curves"]] == ["copy", "zero, new input"]
    assert results["curves"][0]["steps"] == [0, 20, 40]
    assert len(results["claims"]) == 6
    assert {path.stem for path in (out / "figures").glob("*.png")} == {"untie_curve", "untie_trajectories"}
    page = (out / "report.html").read_text()
    for words in (
        "tied, then untied",
        "copy: means over seeds, with simultaneous 95 % bands",
        "never tied, from equal tables",
        "How to reproduce",
    ):
        assert words.lower() in page.lower()


def test_solved_members_stay_near_bayes_for_a_cycle_and_do_not_diverge(run):
    """Losses are set by hand: near Bayes for the last whole cycle, for one record less, or up to a divergence."""
    out, results, metrics = run
    settings = resume.read(STUDY, ["--resume", "--out", str(out)]).settings
    near, far = results["bayes"]["cross_entropy"] + 0.05, results["bayes"]["cross_entropy"] + 0.5
    loss, finite = np.full(metrics["exact_cross_entropy"].shape, far), metrics["finite"].copy()
    assert metrics["exact_step"].tolist() == [0, 10, 20, 30, 40]  # and a cycle has 20 steps
    loss[:, 0, 2:], loss[:, 1, 1:4], loss[:, 2, 3:], loss[3, 3, :4] = near, near, near, near
    loss[3, 3, 4], finite[3, 3, 4] = np.nan, False
    body, _ = conclude(settings, metrics | {"exact_cross_entropy": loss, "finite": finite}, None)
    ends, points = body["ends"], body["curves"][0]["points"]
    assert [end["solved"] for end in ends.values()] == [2, 2, 2]
    assert [point["solved"] for point in points] == [2, 2, 2]
    assert (body["seeds"], body["excluded_seeds"]) == ([*range(6)], [3])
    np.testing.assert_allclose(points[1]["loss"], [near, far, near, far, far, far])
    assert {row["n"] for row in body["claims"]} == {6}


def test_members_are_tied_until_their_untie_step(run):
    _, _, metrics = run
    apart = np.abs(metrics["distance_input"] - metrics["distance_output"]).max(axis=(1, 3))
    assert metrics["step"].tolist() == [0, 10, 20, 30, 40]
    # Independent, equal at the start, tied throughout, tied up to step 20 twice.
    expected = [[True] * 5, [False, *[True] * 4], [False] * 5, [False] * 3 + [True] * 2, [False] * 3 + [True] * 2]
    np.testing.assert_array_equal(apart > 0, expected)
    # All arms but the independent one are equal until they untie.
    np.testing.assert_array_equal(metrics["train_loss"][2, :, :3], metrics["train_loss"][3, :, :3])
    assert (metrics["train_loss"][3, :, 3:] != metrics["train_loss"][4, :, 3:]).any()


@pytest.mark.slow
def test_baselines_equal_members_of_an_exor_run(run):
    """Always tied, and never tied from independent tables: the tied and untied members of EXor."""
    _, _, metrics = run
    settings = Settings(seeds=6, steps=40, bits=4, record_every=10, exact_every=10, half_period=10).resolved()
    records = training.train(build_ensemble(settings), settings.seed_list).records["record"]
    for arm, number in ((0, 0), (1, 2)):
        np.testing.assert_allclose(records["train_loss"][:, :, arm].T, metrics["train_loss"][number], rtol=1e-5)


@pytest.mark.slow
def test_run_is_resumed_across_the_untie_step(tmp_path, monkeypatch, run):
    """A run stopped after the first chunk, before the tie ends, and then resumed is bitwise equal."""
    _, _, wanted = run
    out = tmp_path / "run"
    argv = [*TINY, "--seeds", "6", "--policies", "[copy,zero]", "--new", "[input]", "--out", str(out)]
    asked = iter([False, False, True])
    with monkeypatch.context() as stopping:
        stopping.setattr("tiejax.lab.runs.train.stop_flag", lambda: lambda: next(asked))
        assert entry.main(STUDY, argv) == 130
    assert entry.main(STUDY, [*argv, "--resume"]) == 0
    with np.load(out / "metrics.npz") as metrics:
        for name, values in wanted.items():
            assert metrics[name].tobytes() == values.tobytes(), name
