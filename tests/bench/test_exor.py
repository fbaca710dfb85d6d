"""The benchmark of EXor, at a tiny size: results on disk, and the numbers of steps that are timed."""

import dataclasses
import importlib.util
import json

import pytest

from experiments.bench import exor
from experiments.bench.settings import ENDLESS, ExorBench
from experiments.bench.timing import Timed, TimedEnsemble
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.exor.ensemble import build_ensemble

RATE = {"median", "min", "max"}


@pytest.mark.bench
def test_results_and_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exor, "SEEDS_RECORDED", 1)
    settings = ExorBench(seeds=[1, 3], engines=["fast"], seconds=0.01, out=str(tmp_path / "out"))
    exor.run(settings, Console())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results) == {
        *("benchmark", "config", "devices", "platform", "cpus", "jax"),
        *("torch", "rows", "recording_share", "work_per_model_step", "device_rates", "floor"),
    }
    assert (results["benchmark"], results["config"]) == ("exor", dataclasses.asdict(settings))
    assert [(row["engine"], row["seeds"], row["models"]) for row in results["rows"]] == [
        ("fast", 1, 2),
        ("fast", 3, 6),
    ]
    floor = min(results["floor"].values())
    for row in results["rows"]:
        assert set(row) == {"engine", "seeds", "models", "compile_s", "over_torch", "of_floor"} | RATE
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert row["of_floor"] == row["median"] / floor < 1
        if importlib.util.find_spec("torch"):
            assert row["over_torch"] == row["median"] / results["torch"]["median"]
    assert set(results["recording_share"]) == RATE
    assert results["recording_share"]["max"] < 1
    assert results["work_per_model_step"]["flops"] == 72576
    assert (tmp_path / "out" / "throughput.png").read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert sum("model-steps/s  (" in line for line in lines) == 2
    assert lines[-1].startswith("results: ")


@pytest.mark.bench
def test_plain_engine():
    row = exor.measure_ensemble(ExorBench(seconds=0.01), "plain", 1)
    assert (row["engine"], row["models"]) == ("plain", 2)
    assert 0 < row["min"] <= row["median"] <= row["max"]


@pytest.mark.bench
def test_other_architectures_are_not_compared_with_torch(tmp_path):
    settings = ExorBench(seeds=[1], model="mixer", size="medium", seconds=0.01, out=str(tmp_path))
    exor.run(settings, Console(quiet=True))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(row["engine"], row["models"], row["over_torch"], row["of_floor"]) for row in results["rows"]] == [
        ("plain", 2, None, None)
    ]
    assert results["torch"] is results["recording_share"] is None


def test_torch_loop_is_left_out_without_torch(monkeypatch, capsys):
    monkeypatch.setattr(exor.importlib.util, "find_spec", lambda name: None)
    assert exor.measure_torch(ExorBench(), Console()) is None
    assert "torch is not installed" in capsys.readouterr().out


def test_only_the_record_schedule_differs_without_recording():
    for engine, exact_every in (("fast", 500), ("plain", 10_000)):
        recorded, bare = (ExorBench().study_settings(engine, 3, recording) for recording in (True, False))
        assert (recorded.record_every, recorded.exact_every) == (500, exact_every)
        assert bare == dataclasses.replace(recorded, record_every=ENDLESS, exact_every=ENDLESS)


def test_whole_record_periods_are_timed():
    class Steady(TimedEnsemble):
        """An ensemble that takes a millisecond per step."""

        def __init__(self):
            self._ensemble = build_ensemble(ExorBench().study_settings("fast", 1), "cpu")

        def train(self, steps):
            return Timed(steps / 1000, 0.0)

    assert [exor.steps_for(Steady(), seconds) for seconds in (0.001, 0.3, 0.5, 1.6)] == [20, 300, 500, 1500]
