"""The fine-tuning stages of a run: selection of learning rates, scores of every seed, dropped top layers, mixed layers.

Members are `[seed, arm]`. A seed is a pre-training seed with a fine-tuning seed; its arms are its starts (pre-trained and
control), or each start at every learning rate.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax import training
from tiejax.lab.runs.rates import Tried, choose_rate
from tiejax.lab.runs.stages import Stages
from tiejax.lab.studies.embedding_coupling.encoders import PRETRAINED, Arrays, Encoders
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.task_data import TaskData
from tiejax.training.placement import map_members
from tiejax.transfer import fine_tuning
from tiejax.transfer.batches import TaskRows
from tiejax.transfer.scores import accuracy, macro_f1
from tiejax.transfer.task_head import HeadKind

PyTree = Any
UNREPORTED = 2**20  # fine-tuning seeds from here on only select learning rates
WARM_UP = 0.1  # fraction of the steps, as for BERT


class Members(NamedTuple):
    """The members to fine-tune: indices of their pre-training seeds, their fine-tuning seeds, and rates `[seed, arm]`."""

    indices: Sequence[int]
    runs: Sequence[int]
    rates: np.ndarray


class Tuning(NamedTuple):
    """Fine-tuning of the encoders of one shape. mesh: devices per member."""

    settings: Settings
    name: str
    encoders: Encoders
    mesh: int
    stages: Stages

    def rates(self, task: TaskData, stage: str, kind: HeadKind | None = None) -> Arrays:
        """Choose the learning rate of each start by the accuracy on development of the tuning seeds.

        The rates of the settings are tried in one stage, and further ones in stages of their own while the last one is the best
        (`choose_rate`); a single rate is used as it is. kind: override the kind of the task's head.

        Returns the rates `tried`, their accuracies `development[rate, start, seed]`, NaN where a start did not try a rate, and
        the best `rate[start]`.
        """
        given = self.settings.fine_tuning_rates
        first = self.stages.once(
            stage, lambda: self._development(task, stage, self.encoders, given, kind) | {"tried": np.asarray(given)}
        )
        if "rate" in first:  # the stage of a run by an earlier version, which tried no further rates
            return first

        def losses_at(rates: Sequence[float], place: int, start: str) -> np.ndarray:
            if rates is given:
                return -first["development"][:, place]
            further = f"{stage}.{start}.{rates[0]:g}"
            self.stages.add(further, self.stages.costs[stage] / first["development"][..., 0].size)
            work = functools.partial(self._development, task, further, self.encoders.only(start), rates, kind)
            return -self.stages.once(further, work)["development"][:, 0]

        choose = choose_rate if len(given) > 1 else lambda rates, losses_at: Tried(np.asarray(rates), losses_at(rates))
        chosen = [
            choose(given, functools.partial(losses_at, place=place, start=start))
            for place, start in enumerate(self.encoders.by_start)
        ]
        every = sorted({rate for tried in chosen for rate in tried.rates.tolist()})
        development = np.full((len(every), *first["development"].shape[1:]), np.nan)
        for place, tried in enumerate(chosen):
            development[np.searchsorted(every, tried.rates), place] = -tried.losses
        return {"tried": np.array(every), "development": development, "rate": np.array([tried.rate for tried in chosen])}

    def _development(
        self, task: TaskData, stage: str, encoders: Encoders, tried: Sequence[float], kind: HeadKind | None
    ) -> Arrays:
        """Fine-tune the tuning seeds at these rates; return accuracies `development[rate, start, seed]`."""
        indices = range(len(self.settings.seed_list), len(self.settings.trained_seeds))
        starts = len(encoders.by_start)
        rates = np.tile(np.repeat(np.asarray(tried), starts), (len(indices), 1))
        members = Members(indices, [UNREPORTED + index for index in range(len(indices))], rates)
        *_, confusions = self._tune(stage, encoders, task, kind or task.kind, members, ["development"])
        return {"development": accuracy(confusions["development"]).T.reshape(len(tried), starts, len(indices))}

    def scores(
        self, task: TaskData, rates: np.ndarray, stage: str, encoders: Encoders | None = None, kind: HeadKind | None = None
    ) -> Arrays:
        """Fine-tune every seed at the rate of its start; return `SPLIT_accuracy` and `SPLIT_macro_f1` `[start, seed, run]`.

        SPLIT is development or test; test is used only here. encoders, kind: override the encoders of the shape and the kind of
        the task's head.
        """
        encoders, kind = encoders or self.encoders, kind or task.kind
        seeds, runs = self.settings.seed_list, self.settings.fine_tuning_seeds
        indices = [index for index in range(len(seeds)) for _ in range(runs)]
        members = Members(indices, [*range(runs)] * len(seeds), np.tile(rates, (len(indices), 1)))
        params, finite, confusions = self._tune(stage, encoders, task, kind, members, list(task.splits))

        def by_start(values: np.ndarray) -> np.ndarray:
            return np.moveaxis(values.reshape(len(seeds), runs, -1), 2, 0)

        arrays = {"finite": by_start(finite)}
        for split, confusion in confusions.items():
            arrays |= {f"{split}_accuracy": by_start(accuracy(confusion)), f"{split}_macro_f1": by_start(macro_f1(confusion))}
        if kind == "layer_mix":
            arrays["mix"] = np.moveaxis(np.asarray(params["head"]["mix"]["weights"]), 1, 0)
        return arrays

    def dropped(self, task: TaskData, rates: np.ndarray) -> dict[str, Arrays]:
        """Fine-tune pre-trained encoders without 1, 2, ... top layers; return the arrays of each stage. rates: by start."""
        left, pretrained = {}, self.encoders.only(PRETRAINED)
        for number in range(1, self.encoders.model.encoder.layers):
            stage = f"dropped.{self.name}.{number}"
            work = functools.partial(self.scores, task, rates[:1], stage, pretrained.without(number))
            left[stage] = self.stages.once(stage, work)
        return left

    def mixed(self, task: TaskData) -> dict[str, Arrays]:
        """Train a linear probe on a learnt mix of the frozen layers; return the arrays of its stages."""
        tried, stage = f"mix_rates.{self.name}", f"mix.{self.name}"
        rates = self.rates(task, tried, "layer_mix")
        return {tried: rates, stage: self.stages.once(stage, lambda: self.scores(task, rates["rate"], stage, kind="layer_mix"))}

    def _tune(
        self, stage: str, encoders: Encoders, task: TaskData, kind: HeadKind, members: Members, splits: Sequence[str]
    ) -> tuple[PyTree, np.ndarray, dict[str, np.ndarray]]:
        """Fine-tune members, and evaluate them on these splits.

        Returns of members `[seed, arm]`: parameters, whether all are finite, and confusion matrices by split.
        """
        settings = self.settings
        pooling = settings.pooling if task.kind == "classification" else "first"
        objective = fine_tuning.Objective(encoders.model, kind, len(task.labels), settings.fine_tuning_dropout, pooling)
        recipe = fine_tuning.Recipe(
            settings.fine_tuning_epochs, settings.weight_decay, WARM_UP, settings.eps, settings.clip, settings.matmul_precision
        )
        seeds = [settings.trained_seeds[index] for index in members.indices]
        # The arms are all starts at the first rate, then all starts at the second, and so on.
        repeats = members.rates.shape[1] // len(encoders.by_start)
        start = jax.tree.map(lambda leaf: np.concatenate([leaf] * repeats, axis=1), encoders.stacked(members.indices))
        ensemble = fine_tuning.build_ensemble(
            objective, recipe, task.feed, seeds, members.runs, start, members.rates, self.mesh
        )
        arms = [f"{name}/rate-{rate:g}" for rate in dict.fromkeys(members.rates[0].tolist()) for name in encoders.by_start]
        arms = arms if repeats > 1 else list(encoders.by_start)
        names = [f"{seed}/run-{run}" if run < UNREPORTED else str(seed) for seed, run in zip(seeds, members.runs, strict=True)]
        params = self.stages.train(stage, ensemble, seeds, members.runs, arms, names).members.state.params

        def measure(params: PyTree, rows: Mapping[str, TaskRows]) -> tuple[jax.Array, dict[str, jax.Array]]:
            confusions = {split: objective.confusion(params, batches) for split, batches in rows.items()}
            return training.all_finite(params), confusions

        return params, *map_members(measure, params, {split: task.splits[split] for split in splits}, self.mesh)
