"""The ensemble of an untying run: EXor's members, with training phases for each arm."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tiejax import training
from tiejax.lab.studies.exor import ensemble as exor
from tiejax.lab.studies.exor import sizes
from tiejax.lab.studies.untying.settings import Settings
from tiejax.training import Ensemble


def build_ensemble(settings: Settings) -> Ensemble:
    """Return the ensemble of resolved settings: EXor's members, with training phases for each arm."""
    assert settings.steps is not None
    arms = settings.untie_arms
    arm_ties, phases = training.phases_of_arms(arms.step.tolist(), settings.steps, arms.policy.tolist(), arms.new.tolist())
    optimizer = exor.make_optimizer(settings, counts="leaf")
    return dataclasses.replace(
        exor.build_ensemble(settings),
        optimizer=optimizer,
        arm_ties=arm_ties,
        phases=phases,
        members=training.Vmapped(exor.seeds_at_once(settings, len(arms.step))),
        records_per_chunk=sizes.records_per_chunk(settings, len(arms.step)),
    )


def named_arrays(records: Mapping[str, Mapping[str, np.ndarray]], settings: Settings) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[arm, seed, record, ...]`, exact ones with the prefix `exact_`."""
    return exor.named_arrays(records, settings) | settings.untie_arms.arrays
