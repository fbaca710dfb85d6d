"""How the models of a run train: their ensembles, and what judges them at the end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import training
from tiejax.lab.comparison.arms import Class
from tiejax.lab.comparison.training import Arrays
from tiejax.lab.runs.rates import Pair
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.model import (
    Objective,
    held_out,
    objective_of,
    optimizer_of,
    recorders_of,
    ties_of,
)
from tiejax.lab.studies.causal_untying.plan import Arm
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.training.optimizer import with_rates
from tiejax.training.placement import member_map
from tiejax.training.sources import ExampleFeed

PyTree = Any


class Recipe(NamedTuple):
    """The models of a run with its settings and text (`lab.comparison.training.Recipe`).

    devices: the number of devices that train one model together.
    """

    settings: Settings
    text: Text
    devices: int = 1

    def ensemble(self, arm: Arm, first: int, last: int, steps: int) -> training.Ensemble:
        """Return the ensemble that trains an arm for the steps first, ..., last - 1 of a run, which it counts from 0."""
        objective = self.objective(arm)
        return training.Ensemble(
            init=objective.init,
            sample=lambda seed_key, step, tokens: tokens,
            loss=objective.loss,
            optimizer=optimizer_of(self.settings, steps, arm),
            ties=ties_of(arm),
            arm_ties=np.array([[arm.tied] * len(ties_of(arm))], bool),
            steps=last - first,
            first_step=first,
            recorders=recorders_of(self.settings, objective, self.text),
            max_norm=self.settings.clip,
            source=ExampleFeed(self.text.train, self.settings.batch_size, first),
            members=training.Unrolled() if jax.default_backend() == "cpu" else training.Vmapped(),
            precision=self.settings.matmul_precision,
            devices=self.devices,
        )

    def objective(self, arm: Arm) -> Objective:
        """Return the objective of an arm."""
        return objective_of(self.settings, self.text, arm)._replace(devices=self.devices)

    def with_rates(self, opt_state: PyTree, rates: Sequence[Pair]) -> PyTree:
        """Return the optimizer state of members `[seed, 1, ...]` with their learning rates and factors of the tables'."""
        return with_rates(opt_state, *jnp.asarray(rates).T[..., None])

    def judge(self, arm: Arm) -> Callable[[PyTree], Arrays]:
        """Return params -> sums of the final validation by bucket or kind of choice, `[seed, ...]` (see `Objective.sums`)."""
        batches = held_out(self.text, self.settings.batch_size, self.settings.final_blocks)
        mapped = member_map(self.objective(arm).sums)
        return lambda params: {name: values[:, 0] for name, values in mapped(params, batches).items()}

    def final_loss(self, judged: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the final validation loss `[seed]`, in nats a token."""
        return np.asarray(judged["nats"].sum(-1) / judged["count"].sum(-1))


def tuning_arm(kind: Class) -> Arm:
    """Return the arm whose models choose the learning rate of a class of arms."""
    return Arm(plan.TIED, True) if kind == "tied" else Arm(plan.NEVER_EQUAL, False)
