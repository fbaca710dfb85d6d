"""Tests of a single model: bitwise resumption, the map of each method, and groups of devices."""

import dataclasses

import jax
import numpy as np
import pytest
from layer_runs import data_of_groups

from tiejax import tying
from tiejax.lab.studies.layer_tying import job
from tiejax.lab.studies.layer_tying.job import Job, job_of, run_job
from tiejax.lab.studies.layer_tying.jobs import groups_of
from tiejax.lab.studies.layer_tying.model import build
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.models import TABLE_PATHS
from tiejax.training import Checkpoints


@pytest.mark.slow
def test_stopped_model_resumes_bitwise_with_unusual_options(tmp_path):
    """Masked BERT in half precision with the published ties, frozen layers and full storage."""
    settings = Settings(
        layers=3, width=8, heads=2, context=6, batch_size=2, steps=12, k=2, validate_every=5, dropout=0.2, architecture="bert",
        objective="masked", dtype="bfloat16", ties="published", gradient="owner", start="frozen-random", storage="full",
        reward="clipped-ppl", moments="zero",
    ).resolved()  # fmt: skip
    layered = build(settings, 11, 0, jax.devices()[:1])
    batches = data_of_groups()
    agent = Job("agent", 7, "learner", None)
    straight = run_job(layered, settings, agent, batches)
    asked = iter([False, False, True])
    checkpoints = Checkpoints(tmp_path / "job", [tying.Tie(*TABLE_PATHS)], say=pytest.fail)
    assert run_job(layered, settings, agent, batches, checkpoints, stop_requested=lambda: next(asked)) is None
    resumed = run_job(layered, settings, agent, batches, checkpoints, resume=True)
    checkpoints.close()
    assert straight is not None
    assert resumed is not None
    for group, fields in straight[0].items():
        for name in set(fields) - {"time"}:
            np.testing.assert_array_equal(fields[name], resumed[0][group][name], err_msg=f"{group} {name}")
    for one, other in zip(jax.tree.leaves(straight[1]), jax.tree.leaves(resumed[1]), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.dtype("bfloat16")
    assert np.isfinite(straight[0]["step"]["loss"]).all()


@pytest.mark.slow
def test_several_groups_at_once_train_as_one_by_one(tmp_path, monkeypatch):
    """A fixed map on an accelerator: the same losses, also when stopped between, and validations at the same steps."""
    settings = Settings(layers=2, width=8, heads=2, context=6, batch_size=2, steps=11, k=2, validate_every=5, dropout=0.2)
    settings = dataclasses.replace(settings.resolved(), learning_rate=0.05)
    layered = build(settings, 11, 0, jax.devices()[:1])
    data = data_of_groups()
    fixed = Job("untied", 7, None, tying.independent(2))
    one_by_one, _ = run_job(layered, settings, fixed, data)
    monkeypatch.setattr(job, "groups_at_once", lambda seconds: 4)
    asked, progress, before = iter([True]), [], layered.compilations
    checkpoints = Checkpoints(tmp_path / "job", [tying.Tie(*TABLE_PATHS)], say=pytest.fail)
    stopped = run_job(layered, settings, fixed, data, checkpoints, stop_requested=lambda: next(asked))
    assert stopped is None
    several, _ = run_job(
        layered, settings, fixed, data, checkpoints, resume=True, on_steps=lambda steps, _: progress.append(steps)
    )
    checkpoints.close()
    # A stop after the first group; then one group, and up to four, which end with the groups of the validations at 5 and 10.
    assert progress == [2, 2, 2, 4, 1]
    assert one_by_one["validation"]["step"].tolist() == [0, 5, 10, 11]
    for group, fields in one_by_one.items():
        for name in set(fields) - {"time"}:
            np.testing.assert_array_equal(fields[name], several[group][name], err_msg=f"{group} {name}")
    slower, _ = run_job(layered, dataclasses.replace(settings, learning_rate=0.01), fixed, data)
    assert not np.array_equal(slower["step"]["loss"], several["step"]["loss"])
    assert layered.compilations == before  # one step for all rates


@pytest.mark.slow
def test_factor_of_the_tables_is_that_of_the_settings_or_the_chosen_one():
    """With the factor 1 a program of two rates trains as one with a single rate, bit for bit."""
    small = {"layers": 2, "width": 8, "heads": 2, "context": 6, "batch_size": 2, "steps": 5, "k": 2, "validate_every": 5}
    tuned = Settings(**small, rates=[0.01, 0.02], table_factors=[1, 4]).resolved()
    plain, fixed = Settings(**small).resolved(), Settings(**small, table_rate=4).resolved()
    data, losses = data_of_groups(), []
    for settings in (plain, tuned, fixed, dataclasses.replace(tuned, table_rate=4.0)):
        layered, settings = build(settings, 11, 0, jax.devices()[:1]), dataclasses.replace(settings, learning_rate=0.05)
        trained = run_job(layered, settings, Job("untied", 7, None, tying.independent(2)), data)
        assert trained is not None
        losses.append(trained[0]["step"]["loss"].tolist())
    assert losses[0] == losses[1] != losses[2] == losses[3]


def test_groups_at_once_take_a_second(monkeypatch):
    assert job.groups_at_once(1e-9) == 1  # on a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [job.groups_at_once(seconds) for seconds in (0.0, 0.003, 0.1, 0.6, 40.0)] == [32, 32, 10, 1, 1]


def test_maps_of_the_methods():
    settings = Settings(layers=6, heads=2, width=8, distinct=2, maps={"mine": [0, 0, 2, 2, 2, 0]}).resolved()
    # With the published rule the agent's map can name a layer that reads other weights.
    agent_records = {"final": {"best_owner": np.array([[0, 2, 0, 2, 4, 5]], np.int32)}}

    def owner_of(method, seed=0):
        records = agent_records if method in ("found-map", "random-map") else None
        return job_of(settings, method, seed, records).owner

    assert owner_of("cycle").tolist() == [0, 1, 0, 1, 0, 1]
    assert owner_of("mine").tolist() == [0, 0, 2, 2, 2, 0]
    assert owner_of("found-map").tolist() == [0, 1, 0, 1, 4, 5]
    assert len(np.unique(owner_of("random-map"))) == 4
    variant = Settings(layers=6, heads=2, width=8, distinct=2, variants={"v": {"map": "cycle", "distinct": 3}}).resolved()
    assert job_of(variant, "v", 0, None).owner.tolist() == [0, 1, 2, 0, 1, 2]
    assert any(not np.array_equal(owner_of("random-map"), owner_of("random-map", seed)) for seed in range(1, 5))
    np.testing.assert_array_equal(owner_of("random-map"), owner_of("random-map"))
    assert len(np.unique(job_of(settings, "random-map", 0, None).owner)) == 2  # no agent is trained
    assert job_of(settings, "random-agent", 3, None) == Job("random-agent", 3, "random", None)


@pytest.mark.parametrize(
    ("devices", "models", "rows", "groups"),
    [
        (2, 18, 8, [[0], [1]]),  # a model for each device
        (2, 1, 8, [[0, 1]]),
        (2, 1, 7, [[0], [1]]),  # an odd number of rows
        (8, 3, 8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (4, 3, 6, [[0, 1], [2, 3]]),
        (1, 1, 1, [[0]]),
    ],
)
def test_devices_train_together_if_they_outnumber_the_models(devices, models, rows, groups):
    assert [list(group) for group in groups_of(range(devices), models, rows, "gpu")] == groups


def test_cpu_devices_do_not_train_together():
    assert groups_of(range(4), 1, 8, "cpu") == [[0], [1], [2], [3]]
