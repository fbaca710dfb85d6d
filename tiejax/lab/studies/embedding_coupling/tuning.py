"""The fine-tuning stages of a run: selection of learning rates, scores of every seed, dropped top layers, mixed layers.

Members are `[seed, arm]`. A seed is a pre-training seed with a fine-tuning seed; its arms are its starts (pre-trained and
control), or each start at every learning rate.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax import training
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.rates import Pair, choose_rates
from tiejax.lab.runs.stages import Stages
from tiejax.lab.studies.embedding_coupling.encoders import PRETRAINED, Arrays, Encoders
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.task_data import TaskData
from tiejax.training.placement import member_map
from tiejax.transfer import fine_tuning
from tiejax.transfer.batches import TaskRows
from tiejax.transfer.scores import accuracy, macro_f1
from tiejax.transfer.task_head import HeadKind

PyTree = Any
Measure = Callable[[PyTree, PyTree], PyTree]  # members and splits -> whether all are finite, and confusion matrices by split
UNREPORTED = 2**20  # fine-tuning seeds from here on only select learning rates
WARM_UP = 0.1  # fraction of the steps, as for BERT


class Tuning(NamedTuple):
    """Fine-tuning of the encoders of one shape.

    mesh: devices per member. compiled: the ensemble and the measure by head, task, number of layers and of arms, which stages
    share. kind: of the head, instead of the kind of a task.
    """

    settings: Settings
    name: str
    encoders: Encoders
    mesh: int
    stages: Stages
    compiled: dict[Any, tuple[training.Ensemble, Measure]]
    kind: HeadKind | None = None

    def rates(self, task: TaskData, stage: str) -> Arrays:
        """Choose the learning rate of each start by the accuracy on development of the tuning seeds (`choose_rates`).

        The rates of the settings are tried in one stage, further ones in stages of their own. Returns the rates `tried`, their
        accuracies `development[rate, start, seed]`, NaN where a start did not try a rate, and the best `rate[start]`.
        """
        given = self.settings.fine_tuning_rates
        label = f"learning rates of {self.name}{', mixed layers' if self.kind == 'layer_mix' else ''}, {task.name}"
        work = functools.partial(self._development, task, stage, given)
        first = self.stages.once(stage, label, lambda: work() | {"tried": np.asarray(given)})

        def losses_at(pairs: Sequence[Pair], place: int, start: str) -> np.ndarray:
            rates = [rate for rate, _ in pairs]
            if rates == list(given):
                return -first["development"][:, place]
            further = f"{stage}.{start}.{float(rates[0])!r}"
            self.stages.add(further, self.stages.costs[stage] / first["development"][..., 0].size)
            of_start = self._replace(encoders=self.encoders.only(start))
            work = functools.partial(of_start._development, task, further, rates)
            return -self.stages.once(further, f"{label}, {start}", work)["development"][:, 0]

        chosen = [
            choose_rates(given, functools.partial(losses_at, place=place, start=start))
            for place, start in enumerate(self.encoders.by_start)
        ]
        every = sorted({rate for tried in chosen for rate in tried.rates.tolist()})
        development = np.full((len(every), *first["development"].shape[1:]), np.nan)
        for place, tried in enumerate(chosen):
            development[np.searchsorted(every, tried.rates), place] = -tried.losses
        return {"tried": np.array(every), "development": development, "rate": np.array([tried.rate for tried in chosen])}

    def _development(self, task: TaskData, stage: str, tried: Sequence[float]) -> Arrays:
        """Fine-tune the tuning seeds at these rates; return accuracies `development[rate, start, seed]`, 0 if diverged."""
        first, starts = len(self.settings.seed_list), len(self.encoders.by_start)
        seeds = [(first + number, UNREPORTED + number) for number in range(self.settings.rate_seeds)]
        _, finite, confusions = self._tune(stage, task, seeds, np.repeat(tried, starts), ["development"])
        # The argmax over NaN is the first label, which may be right often.
        accuracies = np.where(finite, accuracy(confusions["development"]), 0.0)
        return {"development": accuracies.T.reshape(len(tried), starts, len(seeds))}

    def scores(self, task: TaskData, rates: np.ndarray, stage: str) -> Arrays:
        """Fine-tune every seed at the rate of its start; return `SPLIT_accuracy` and `SPLIT_macro_f1` `[start, seed, run]`.

        SPLIT is development or test; test is used only here.
        """
        number, runs = len(self.settings.seed_list), self.settings.fine_tuning_seeds
        seeds = [(index, run) for index in range(number) for run in range(runs)]
        params, finite, confusions = self._tune(stage, task, seeds, rates, list(task.splits))

        def by_start(values: np.ndarray) -> np.ndarray:
            return np.moveaxis(values.reshape(number, runs, -1), 2, 0)

        arrays = {"finite": by_start(finite)}
        for split, confusion in confusions.items():
            arrays |= {f"{split}_accuracy": by_start(accuracy(confusion)), f"{split}_macro_f1": by_start(macro_f1(confusion))}
        if self.kind == "layer_mix":
            arrays["mix"] = np.moveaxis(np.asarray(params["head"]["mix"]["weights"]), 1, 0)
        return arrays

    def dropped(self, task: TaskData, rates: np.ndarray) -> dict[str, Arrays]:
        """Fine-tune pre-trained encoders without 1, 2, ... top layers; return the arrays of each stage. rates: by start."""
        left, pretrained = {}, self.encoders.only(PRETRAINED)
        for number in range(1, self.encoders.model.encoder.layers):
            stage = f"dropped.{self.name}.{number}"
            fewer = self._replace(encoders=pretrained.without(number))
            label = f"scores of {self.name} without {counted(number, 'layer')}, {task.name}"
            left[stage] = self.stages.once(stage, label, functools.partial(fewer.scores, task, rates[:1], stage))
        return left

    def mixed(self, task: TaskData) -> dict[str, Arrays]:
        """Train a linear probe on a learnt mix of the frozen layers; return the arrays of its stages."""
        tried, stage, probe = f"mix_rates.{self.name}", f"mix.{self.name}", self._replace(kind="layer_mix")
        rates = probe.rates(task, tried)
        label, work = f"scores of {self.name}, mixed layers", functools.partial(probe.scores, task, rates["rate"], stage)
        return {tried: rates, stage: self.stages.once(stage, label, work)}

    def _tune(
        self, stage: str, task: TaskData, seeds: Sequence[tuple[int, int]], rates: np.ndarray, splits: Sequence[str]
    ) -> tuple[PyTree, np.ndarray, dict[str, np.ndarray]]:
        """Return of fine-tuned members `[seed, arm]`: parameters, whether all are finite, and confusion matrices by split.

        seeds: index of the pre-training seed, and fine-tuning seed. rates: of all starts, then of all starts again, and so on.
        """
        settings, encoders = self.settings, self.encoders
        indices, runs = zip(*seeds, strict=True)
        trained, repeats = [settings.trained_seeds[index] for index in indices], len(rates) // len(encoders.by_start)
        start = jax.tree.map(lambda leaf: np.concatenate([leaf] * repeats, axis=1), encoders.stacked(indices))
        objective = self._objective(task)
        key = objective.kind, task.name, objective.model.encoder.layers, len(rates)
        if key not in self.compiled:
            self.compiled[key] = self._compiled(objective, task, start)
        ensemble, measure = self.compiled[key]
        every_rate = np.tile(rates, (len(seeds), 1))
        members = fine_tuning.start_members(objective, trained, runs, start, every_rate, ensemble.optimizer)
        arms = [f"{name}/rate-{rate:g}" for rate in dict.fromkeys(rates.tolist()) for name in encoders.by_start]
        arms = arms if repeats > 1 else list(encoders.by_start)
        names = [f"{seed}/run-{run}" if run < UNREPORTED else str(seed) for seed, run in zip(trained, runs, strict=True)]
        params = self.stages.train(stage, ensemble, trained, runs, arms, names, start=members).members.state.params
        return params, *measure(params, {split: task.splits[split] for split in splits})

    def _objective(self, task: TaskData) -> fine_tuning.Objective:
        """Return the objective of a task."""
        pooling = self.settings.pooling if task.kind == "classification" else "first"
        classes, dropout = len(task.labels), self.settings.fine_tuning_dropout
        return fine_tuning.Objective(self.encoders.model, self.kind or task.kind, classes, dropout, pooling)

    def _compiled(self, objective: fine_tuning.Objective, task: TaskData, start: PyTree) -> tuple[training.Ensemble, Measure]:
        """Return the ensemble of members that start from encoders of these shapes, and the function that measures them."""
        settings = self.settings
        recipe = fine_tuning.Recipe(
            settings.fine_tuning_epochs, settings.weight_decay, WARM_UP, settings.eps, settings.clip, settings.matmul_precision
        )

        def measure(params: PyTree, rows: Mapping[str, TaskRows]) -> tuple[jax.Array, dict[str, jax.Array]]:
            confusions = {split: objective.confusion(params, batches) for split, batches in rows.items()}
            return training.all_finite(params), confusions

        ensemble = fine_tuning.build_ensemble(objective, recipe, task.feed, start, self.mesh)
        return ensemble, member_map(measure, self.mesh)
