"""Trackers: names and values of series, resumption after kill -9, missing packages, failures. wandb is a stand-in."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from claim_rows import CLAIM
from corpora import ROOT
from directories import here, make_run, refused
from event_readers import points, texts
from processes import end, start, wait_until

from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.runs.trackers import Tracker, points_of
from tiejax.lab.studies.exor.settings import STUDY, Settings

__all__ = ["here", "refused"]  # fixtures
STAND_INS = Path(__file__).parents[2] / "stand_ins"
ROW = CLAIM | {"id": "a/b", "estimate": 0.5, "interval": [0.25, 0.75]}


@pytest.fixture
def received(tmp_path, monkeypatch):
    """Put the stand-ins on the path of this process; return a function that reads the lines that they received."""
    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.setenv("STAND_IN", str(tmp_path / "received"))
    sys.modules.pop("wandb", None)
    yield lambda: lines_of(tmp_path / "received")
    sys.modules.pop("wandb", None)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def series_of(lines):
    """Return series -> [(step, value)] of the lines that the stand-in received."""
    series = {}
    for line in lines:
        values = dict(line.get("values", {}))
        step = values.pop("step", None)
        for name, value in values.items():
            series.setdefault(name, []).append((step, value))
    return series


def opened(path, name, warn=pytest.fail):
    run = RunDirectory.reserve(STUDY, Settings(out=str(path)).resolved(), resume=True, overwrite=False)
    return run, Tracker.opened(run, name, {"steps": 5}, warn)


def test_points_are_means_over_seeds_and_single_seeds():
    """By a loop over records of two recorders, three seeds under two conditions and two arms."""
    rng = np.random.default_rng(0)
    values = {"record": rng.normal(size=(2, 6, 2)), "exact": rng.normal(size=(1, 6, 2))}
    records = {
        "record": {
            "step": np.array([0, 10]),
            "train loss": values["record"],
            "finite": np.ones((2, 6, 2), bool),
            "vector": np.ones((2, 6, 2, 3)),
        },
        "exact": {"step": np.array([10]), "risk": values["exact"]},
    }
    wanted = {}
    for recorder, field, steps in (("record", "train_loss", [0, 10]), ("exact", "exact_risk", [10])):
        for place, step in enumerate(steps):
            for condition in range(2):
                for arm, arm_name in enumerate(("untied", "tied")):
                    name, total = f"{field}/{arm_name}/condition-{condition}", 0.0
                    for seed in range(3):
                        value = values[recorder][place, condition * 3 + seed, arm]
                        wanted[step + 100, f"{name}/seed-{seed + 7}"] = value
                        total += value
                    wanted[step + 100, name] = total / 3
    found = points_of(records, ["untied", "tied"], [7, 8, 9] * 2, [0, 0, 0, 1, 1, 1], first=100)
    assert list(found) == [100, 110]
    flat = {(step, name): value for step, of_step in found.items() for name, value in of_step.items()}
    assert flat.keys() == wanted.keys()
    for place, value in wanted.items():
        np.testing.assert_allclose(flat[place], value, rtol=1e-12)


def test_seeds_of_many_members_have_no_series():
    def series(seeds):
        records = {"record": {"step": np.array([0]), "loss": np.zeros((1, seeds, 2))}}
        return set(points_of(records, ["untied", "tied"], range(seeds))[0])

    assert len(series(32)) == 2 * 33
    assert series(33) == {"loss/untied", "loss/tied"}


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_resumed_run_continues_the_run_of_the_tracker(tmp_path, received, name):
    """A process that is killed after steps that its checkpoint does not hold sends them again; two lines, one finished."""
    steps = {step: {"loss/tied": float(step)} for step in (0, 10, 20)}
    run, killed = opened(make_run(tmp_path / "run"), name)
    killed.add("first", {0: {"other/tied": 3.0}})
    killed.add("second", steps)
    killed.add("second", steps)  # the same process, as it hands over all records
    run.release()
    run, tracker = opened(tmp_path / "run", name)
    tracker.add("second", {step: steps[step] for step in (0, 10)})
    tracker.add("second", {20: steps[20], 30: {"loss/tied": 30.0}})
    tracker.end([ROW])
    tracker.__exit__(None, None, None)
    run.release()
    words = "supported (0.5, 95 % interval 0.25 to 0.75, n = 8)"
    if name == "tensorboard":
        folder = tmp_path / "run" / "events"
        found = points(folder / "first") | points(folder / "second")
        assert texts(folder) == {"settings": "    steps: 5", "claims": f"* a/b: {words}"}
    else:
        lines = received()
        found = series_of(lines)
        assert len({line["run"] for line in lines}) == 1
        assert [line["config"] for line in lines if "config" in line] == [{"steps": 5}] * 2
        assert [list(line["summary"].values()) for line in lines if "summary" in line] == [[words]]
        assert lines[-1]["finished"]
    assert found == {"other/tied": [(0, 3.0)], "loss/tied": [(float(step), float(step)) for step in (0, 10, 20, 30)]}
    killed.__exit__(None, None, None)  # closes its file


@pytest.mark.parametrize("seconds", [0, 60])
def test_rows_that_may_be_lost_are_sent_again_under_the_same_numbers(tmp_path, received, monkeypatch, seconds):
    """wandb holds rows in memory for a while; the service drops those that it has."""
    monkeypatch.setattr("tiejax.lab.runs.trackers.STORED_AFTER_S", seconds)
    run, tracker = opened(make_run(tmp_path / "run"), "wandb")
    tracker.add("", {0: {"loss": 0.0}})
    tracker.add("", {10: {"loss": 1.0}, 20: {"loss": 2.0}})
    assert json.loads((tmp_path / "run" / "tracker.json").read_text())["wandb"]["rows"] == (0 if seconds else 3)
    run.release()
    run, tracker = opened(tmp_path / "run", "wandb")
    tracker.add("", {0: {"loss": 0.0}, 10: {"loss": 1.0}})
    tracker.add("", {20: {"loss": 2.0}, 30: {"loss": 3.0}})
    assert series_of(received()) == {"loss": [(0, 0.0), (10, 1.0), (20, 2.0), (30, 3.0)]}
    assert [line["row"] for line in received() if "row" in line] == [0, 1, 2, 3]


@pytest.mark.parametrize("when", ["opening", "sending", "damage"])
def test_a_failing_tracker_is_one_warning(tmp_path, received, monkeypatch, when):
    warnings, path = [], make_run(tmp_path / "run")
    monkeypatch.setenv("STAND_IN_FAILS", "1")
    if when == "opening":
        monkeypatch.setattr(importlib.import_module("wandb"), "init", None)
    if when == "damage":
        (path / "tracker.json").write_text("{")
    _, tracker = opened(path, "wandb", warnings.append)
    for step in range(3):
        tracker.add("", {step: {"loss": 1.0}})
    tracker.end([ROW])
    (warning,) = warnings
    assert warning.startswith("--tracker wandb: ")
    assert warning.endswith("; the run goes on without it")
    assert "\n" not in warning
    assert not tracker.tracks
    if when == "sending":
        assert "ConnectionError: no route to host;" in warning
        assert [line["row"] for line in received() if "row" in line] == [0]


@pytest.mark.parametrize("folder", [False, True], ids=["nothing", "a folder of that name"])
def test_a_tracker_that_is_not_installed(here, refused, monkeypatch, folder):
    """The working directory may hold a folder `wandb` of earlier runs, which Python imports as a package."""
    if folder:
        (here / "wandb").mkdir()
        monkeypatch.syspath_prepend(here)
        sys.modules.pop("wandb", None)
    else:
        monkeypatch.setitem(sys.modules, "wandb", None)
    refused(["--tracker", "wandb", "--out", "run"], "--tracker wandb", "pip install wandb", "not installed")


def test_an_unknown_tracker(here, refused):
    refused(["--tracker", "mlflow", "--out", "run"], "--tracker", "mlflow", "tensorboard")


def test_nothing_is_imported_unless_it_is_asked_for():
    code = """
import sys
from tiejax.lab.runs import entry, stages, trackers
trackers.check("none")
with trackers.Tracker() as tracker:
    tracker.add("", {0: {"loss": 1.0}})
sys.exit(bool({"wandb", "tensorboardX"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_killed_run_of_exor_loses_and_repeats_no_point(tmp_path, name):
    """Every recorded number of metrics.npz is a point of the tracker, after kill -9 behind a checkpoint and --resume."""
    env = {"PYTHONPATH": f"{ROOT}:{STAND_INS}", "STAND_IN": str(tmp_path / "received"), "JAX_NUM_CPU_DEVICES": "1"}
    out = tmp_path / "run"
    argv = ["--bits", 4, "--seeds", 2, "--steps", 4000, "--record_every", 20, "--exact_every", 200, "--out", out]
    argv += ["--checkpoint_every", "0.01", "--tracker", name]
    process = start(*argv, env=env, cwd=tmp_path)
    assert wait_until(
        lambda: any(path.name.isdigit() and int(path.name) > 40 for path in (out / "checkpoints").glob("*")), process
    )
    process.kill()
    process.communicate()
    assert not (out / "results.json").exists()
    again = end(start("--resume", "--out", out, env=env, cwd=tmp_path))
    assert again.status == 0, again.err
    assert "resuming at step" in again.out
    assert len(again.warnings) == 1  # of two seeds, which cannot decide a claim
    found = points(out / "events") if name == "tensorboard" else series_of(lines_of(tmp_path / "received"))
    with np.load(out / "metrics.npz") as arrays:
        metrics = dict(arrays)
    cases = {"train_loss": ("train_loss", "step", ...), "exact_cross_entropy/train": ("exact_cross_entropy", "exact_step", 0)}
    for series, (field, steps, place) in cases.items():
        for arm, arm_name in enumerate(("untied", "tied")):
            values = metrics[field][arm] if place is ... else metrics[field][arm, ..., place]
            wanted = {
                f"{series}/{arm_name}": values.mean(0),
                **{f"{series}/{arm_name}/seed-{seed}": values[seed] for seed in (0, 1)},
            }
            for tag, rows in wanted.items():
                assert [step for step, _ in found[tag]] == metrics[steps].tolist(), tag
                np.testing.assert_allclose([value for _, value in found[tag]], rows, rtol=1e-6, err_msg=tag)
