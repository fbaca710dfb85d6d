"""Stages of a run: their results, and the share that is done, also in the middle of a stage."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from directories import make_run
from event_readers import points

from tiejax import training
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.runs.stages import Stages, Stopped
from tiejax.lab.runs.trackers import Tracker
from tiejax.lab.studies.exor.settings import STUDY, Settings


def new_stages(out, stop, tracker="none", **costs):
    settings = Settings(out=str(out if out.exists() else make_run(out))).resolved()
    run = RunDirectory.reserve(STUDY, settings, resume=True, overwrite=False)
    tracked = Tracker.opened(run, tracker, {}, pytest.fail)
    launched = Launched(settings, {"resume": True}, "", run, True, False, None, tracked)
    return Stages(launched, Console(quiet=True), stop, costs), run


def small_ensemble():
    return training.Ensemble(
        init=lambda key: {"w": jnp.zeros(1)},
        sample=lambda seed_key, step, fed: jnp.zeros(1),
        loss=lambda params, batch, key: (jnp.sum((params["w"] - 1) ** 2), {}),
        optimizer=optax.sgd(0.1),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        recorders={"every": training.Recorder(10, lambda params, batch, seed_key, step: {"w": params["w"][0]})},
        steps=100,
        records_per_chunk=2,
    )


def test_a_stopped_run_reports_the_share_that_is_done(tmp_path):
    """One stage, three quarters of the run, is done, and a part of the other."""
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > 3

    stages, run = new_stages(tmp_path / "run", stop, first=3, second=1)
    assert stages.once("first", "the first", lambda: {"a": np.arange(3)})["a"].tolist() == [0, 1, 2]
    assert stages.share == 0.75
    with pytest.raises(Stopped):
        stages.once("second", "the second", lambda: {"b": stages.train("second", small_ensemble(), [0]).records["every"]["w"]})
    assert 0.75 < stages.share < 1
    assert not stages.done("second")
    run.release()


def test_the_time_left_counts_training_and_what_comes_with_every_stage(tmp_path, monkeypatch):
    """The user's words for a stage are shown, not its name."""
    now, shown = [100.0], []
    monkeypatch.setattr("tiejax.lab.runs.stages.time", SimpleNamespace(perf_counter=lambda: now[0]))
    stages, run = new_stages(tmp_path / "run", lambda: False, **{"a.0-1": 3, "b.0-1": 1, "c.0-1": 1})
    monkeypatch.setattr(stages._console, "part", lambda *given: shown.append(given))

    def first():
        now[0] += 10
        stages.train_s += 6
        for _ in range(2):
            stages.pace.add("a.0-1", 1.5, 3.0)
        return {}

    def second():
        now[0] += 3
        stages._show("b, seed 0: step 1 of 2", "b.0-1", 0.5, seconds=1.0)
        stages.pace.add("b.0-1", 0.25, 0.5)
        stages._show("b, seed 0: step 2 of 2", "b.0-1", 0.5, seconds=1.0)
        return {}

    stages.once("a.0-1", "a, seed 0", first)
    stages.once("b.0-1", "b, seed 0", second)
    run.release()
    # At first b and c, each 2 s and the 4 s of a that were not training; then half of b and all of c, with the 6 of 13 s that
    # were not training in two stages.
    assert shown == [
        ("a, seed 0", 0.0, None),
        ("b, seed 0", 0.6, pytest.approx(2 * 2 + 2 * 4)),
        ("b, seed 0: step 1 of 2", 0.7, pytest.approx(1.5 * 2 + 6 / 2)),
        ("b, seed 0: step 2 of 2", 0.7, None),  # a program whose pace is not known yet
    ]


def test_a_stage_that_is_stopped_and_resumed_is_tracked_once(tmp_path):
    """Every record, at the steps of the run, under the name of the stage."""
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > 3

    stages, run = new_stages(tmp_path / "run", stop, "tensorboard", second=1)
    with pytest.raises(Stopped), stages._tracker:
        stages.train("second", small_ensemble(), [4, 5], first=1000)
    run.release()
    stages, run = new_stages(tmp_path / "run", lambda: False, "tensorboard", second=1)
    with stages._tracker:
        trained = stages.train("second", small_ensemble(), [4, 5], first=1000)
    run.release()
    found, values = points(tmp_path / "run" / "events" / "second"), trained.records["every"]["w"]
    assert trained.steps_here < 100
    assert set(found) == {f"every_w/second{seed}" for seed in ("", "/seed-4", "/seed-5")}
    for name, wanted in (("", values.mean(1)), ("/seed-5", values[:, 1])):
        steps, shown = zip(*found[f"every_w/second{name}"], strict=True)
        assert steps == tuple(range(1000, 1101, 10))
        np.testing.assert_allclose(shown, wanted[:, 0], rtol=1e-6)
