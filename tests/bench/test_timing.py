"""Summaries of repeated measurements, and training that continues from call to call."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.bench.timing import Timed, TimedEnsemble, spread
from tiejax import training, tying
from tiejax.lab.studies.exor.ensemble import build_ensemble
from tiejax.lab.studies.exor.settings import Settings


def test_spread_is_median_and_range():
    assert spread([4.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert spread([1, 2]) == {"median": 1.5, "min": 1.0, "max": 2.0}


def test_steps_are_estimated_from_whole_windows_of_draws(monkeypatch):
    """A step takes a millisecond; on a GPU, batches are drawn for 500 steps at once, which takes another second."""
    settings, trained = Settings(seeds=1).resolved(), []

    def train(timed, steps):
        trained.append(steps)
        return Timed(steps / 1000 + timed.drawing * -(-steps // 500), 0.0)

    monkeypatch.setattr(TimedEnsemble, "train", train)
    for platform, drawing, expected in (("cpu", 0.0, 3000), ("gpu", 1.0, 1000)):
        timed = TimedEnsemble.__new__(TimedEnsemble)
        timed._ensemble, timed.drawing = build_ensemble(settings, platform), drawing
        assert timed.steps_in(3.0, 100) == pytest.approx(expected)
    assert trained == [100, 500]


def test_every_call_continues_where_the_last_one_ended():
    """Records are so dense that the steps of one call need several chunks."""

    def loss(params, batch, key):
        value = jnp.sum(params["first"] * params["second"])
        return value, {"loss": value}

    ensemble = training.Ensemble(
        init=lambda key: {"first": jnp.ones(2), "second": jnp.ones(2)},
        sample=lambda seed_key, step, fed: step,
        loss=loss,
        optimizer=optax.sgd(0.01),
        ties=[tying.Tie("first", "second")],
        arm_ties=np.array([[False], [True]]),
        steps=1000,
        recorders={"record": training.Recorder(1, lambda params, batch, seed_key, step: {"seen": jnp.asarray(step)})},
        records_per_chunk=4,
    )
    timed = TimedEnsemble(ensemble, [0, 1, 2])
    assert timed.compile_s > 0
    assert timed.memory_bytes > 0
    for steps, cursor in ((3, 3), (10, 13), (1, 14)):
        seconds, worked_s = timed.train(steps)
        assert 0 < worked_s <= seconds
        assert int(jax.device_get(timed._placed.cursor)) == cursor
