"""The members of an untying run: those of EXor, with a phase for each arm."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tiejax import training
from tiejax.studies.exor import study as base
from tiejax.studies.untying.settings import Config
from tiejax.training import Ensemble


def build_ensemble(config: Config) -> "Ensemble":
    """Return the members of a resolved configuration: EXor's, with a phase for each variant."""

    assert config.steps is not None
    variants = config.variants
    switches, phases = training.of_variants(
        variants.step.tolist(), config.steps, variants.policy.tolist(), variants.new.tolist()
    )
    optimizer = base.make_optimizer(config, counts="leaf")
    return dataclasses.replace(base.build_ensemble(config), optimizer=optimizer, switches=switches, phases=phases)


def named_arrays(records: Mapping[str, Mapping[str, np.ndarray]], config: Config) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[variant, seed, record, ...]`, exact ones under `exact_`."""
    return base.named_arrays(records, config) | config.variants.arrays
