"""The step of an untie that follows from recorded cosines, on made-up ones."""

from types import SimpleNamespace

import numpy as np
import pytest

from tiejax.lab.comparison.training import Trainer
from tiejax.lab.runs.rates import Tried
from tiejax.lab.runs.stages import Stages
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.study import threshold_of
from tiejax.lab.studies.causal_untying.trigger import (
    COSINE,
    STEP,
    _assembled,
    running_cosines,
    steps_below,
    untied_at_step,
)

STEPS = np.arange(0, 1001, 50)


def recorded(*of_seeds):
    """Of a run of 1,000 steps, recorded every 50, whose rate is constant from step 20 to 800; the second bucket is noise."""
    frequent = np.array(of_seeds, float)
    return np.stack([frequent, np.random.default_rng(0).normal(size=frequent.shape)], axis=-1)


def cosines(*of_seeds):
    return running_cosines(STEPS, recorded(*of_seeds), 1000)


def test_means_are_over_three_records_of_the_constant_rate():
    steps, means = cosines(STEPS)
    assert steps.tolist() == list(range(150, 801, 50))
    np.testing.assert_allclose(means, [np.arange(100, 751, 50)])


def test_the_threshold_is_the_median_of_all_models():
    records = {STEP: STEPS, COSINE: recorded(np.full(21, 1.0), np.full(21, 3.0), np.full(21, 4.0))}
    trainer = Trainer(SimpleNamespace(settings=Settings(explore=True)), 1000, object.__new__(Stages))
    tried = Tried([(0.1, 1.0)], np.ones((1, 3)), records)
    assert threshold_of(trainer, {"tied": tried}) == 3.0


@pytest.mark.parametrize(
    ("cosine", "step"),
    [
        # Means of three records are below .5 from step 500 on, since two of three records are 0 there.
        (np.where(STEPS < 450, 1.0, 0.0), 600),
        # One high mean begins the 100 steps anew.
        (np.where(STEPS == 550, 3.0, np.where(STEPS < 450, 1.0, 0.0)), 800),
        (np.where(STEPS == 600, 3.0, np.where(STEPS < 450, 1.0, 0.0)), None),
        (np.zeros(21), 250),
        (np.ones(21), None),
    ],
)
def test_a_model_unties_after_100_steps_below_the_threshold(cosine, step):
    assert steps_below(*cosines(cosine), 0.5) == [step]


def test_models_untie_at_steps_of_both_kinds_of_records():
    assert steps_below(*cosines(np.where(STEPS < 450, 1.0, 0.0)), 0.5, every=250) == [750]


def test_arms_are_assembled_from_the_models_of_their_steps():
    """Seed 0 unties at 200, seed 1 never; the yoked arm has the steps the other way round. Values name step and seed."""
    values = {None: [1.0, 2.0], 200: [201.0, 202.0]}
    trained = {step: {"ARM/loss": np.array(of_seeds), "ARM/train_step": STEPS} for step, of_seeds in values.items()}
    own, yoked = _assembled("trigger", [200, None], trained), _assembled("yoked", [None, 200], trained)
    assert own["explore-trigger/loss"].tolist() == [201, 2]
    assert yoked["explore-yoked/loss"].tolist() == [1, 202]
    assert own["explore-trigger/train_step"] is STEPS


def test_segments_of_an_untie_at_a_step():
    before, after = untied_at_step(350, 1000)
    assert (before.arm.tied, before.steps(1000), before.final) == (True, (0, 350), False)
    assert (after.arm.tied, after.steps(1000), after.final) == (False, (350, 1000), True)
    assert after.after is before
    assert after.arm.rate_of == "tied"
    assert after.arm.change == plan.Change()
