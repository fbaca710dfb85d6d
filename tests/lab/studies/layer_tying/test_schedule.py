"""Tests of the learning rate of every step: closed forms, and the steps that a model takes with it."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from layer_runs import data_of_groups

from tiejax import tying
from tiejax.lab.studies.layer_tying.job import Job, rates_of, run_job
from tiejax.lab.studies.layer_tying.model import build
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.training.keys import stream
from tiejax.tying.layer_ties import fixed_wiring


def closed_form(step, steps, warm_up, cosine, rate):
    if step < warm_up:
        return rate * step / warm_up
    return rate / 2 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) if cosine else rate


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("warm_up", [0, 1, 4, 9])
def test_rates_equal_the_closed_form(schedule, warm_up):
    settings = Settings(steps=10, schedule=schedule, warm_up=warm_up, learning_rate=0.02).resolved()
    expected = [closed_form(step, 10, warm_up, schedule == "cosine", 0.02) for step in range(10)]
    np.testing.assert_allclose(rates_of(settings), expected, rtol=1e-5, atol=1e-9)
    both = dataclasses.replace(settings, rates=[0.01, 0.02], table_factors=[1, 3])
    assert rates_of(both).tolist() == [[rate, rate] for rate in rates_of(settings).tolist()]
    np.testing.assert_allclose(
        rates_of(dataclasses.replace(both, table_rate=3.0)), np.outer(expected, [1, 3]), rtol=1e-5, atol=1e-9
    )


@pytest.mark.slow
def test_model_trains_with_the_rate_of_every_step():
    settings = Settings(
        layers=2, width=8, heads=2, context=6, batch_size=2, steps=7, k=2, validate_every=7, schedule="cosine", warm_up=3,
        dropout=0.0,
    ).resolved()  # fmt: skip
    settings = dataclasses.replace(settings, learning_rate=0.05)
    layered, data, owner = build(settings, 11, 0, jax.devices()[:1]), data_of_groups(), tying.independent(2)
    trained = run_job(layered, settings, Job("untied", 7, None, owner), data)
    assert trained is not None
    state, losses = layered.start(jax.random.key(7), owner), []
    for step in range(7):
        key = jax.random.fold_in(stream(jax.random.key(7), "dropout"), step)
        batch, rate = data.group(7, step // 2)[step % 2], closed_form(step, 7, 3, True, 0.05)
        state, loss = layered.step(state, batch, key, fixed_wiring(owner, "compact"), rate)
        losses.append(float(loss))
    np.testing.assert_allclose(trained[0]["step"]["loss"], losses, rtol=1e-5)
