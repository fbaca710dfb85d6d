"""The members of an untying run: those of EXor, with a phase for each arm."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tiejax import training
from tiejax.studies.exor import ensemble as base
from tiejax.studies.untying.settings import Settings
from tiejax.training import Ensemble


def build_ensemble(settings: Settings) -> "Ensemble":
    """Return the members of a resolved configuration: EXor's, with a phase for each arm."""

    assert settings.steps is not None
    arms = settings.arms
    arm_ties, phases = training.phases_of_arms(arms.step.tolist(), settings.steps, arms.policy.tolist(), arms.new.tolist())
    optimizer = base.make_optimizer(settings, counts="leaf")
    return dataclasses.replace(base.build_ensemble(settings), optimizer=optimizer, arm_ties=arm_ties, phases=phases)


def named_arrays(records: Mapping[str, Mapping[str, np.ndarray]], settings: Settings) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[arm, seed, record, ...]`, exact ones under `exact_`."""
    return base.named_arrays(records, settings) | settings.arms.arrays
