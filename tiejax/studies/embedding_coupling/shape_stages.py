"""The stages of a run: what each trains or measures of a shape, and what it leaves as arrays.

Stages of a shape, in their order: `pretrain`, `rates` and `scores` of every task, `dropped` for every number of layers, `mix`,
`probes`. Members are `[seed, arm]`; the arms of fine-tuning are its starts, pre-trained and not, the control.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training
from tiejax.geometry.retrieval import Fitted, translation_accuracy
from tiejax.geometry.word_similarity import bootstrap_interval, similarity_correlation
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.runs.stages import Stages
from tiejax.studies.embedding_coupling.preparation import Prepared
from tiejax.studies.embedding_coupling.pretraining_ensemble import build_ensemble, build_model
from tiejax.studies.embedding_coupling.settings import Settings
from tiejax.studies.embedding_coupling.task_data import ParallelRows, TaskData
from tiejax.studies.embedding_coupling.trees import named, unnamed
from tiejax.training.map_members import map_members
from tiejax.transfer import fine_tuning
from tiejax.transfer.batches import TaskRows
from tiejax.transfer.scores import accuracy, macro_f1
from tiejax.transfer.task_head import HeadKind

PyTree = Any
Arrays = dict[str, np.ndarray]
STARTS = ("pretrained", "control")
FITTED: tuple[Fitted, ...] = ("all", "held_out")
UNREPORTED = 2**20  # the first fine-tuning seed of those on which rates are chosen


@dataclasses.dataclass(frozen=True)
class Encoders:
    """The encoders of a shape without head and dropped layers: a model, and parameters `[seed, ...]` by start."""

    model: models.LanguageModel
    by_start: Mapping[str, PyTree]

    def without(self, layers: int) -> "Encoders":
        """Return them without their top `layers`."""
        fewer = self.model.encoder.clone(layers=self.model.encoder.layers - layers)
        cut = {start: drop_of_members(params, layers) for start, params in self.by_start.items()}
        return Encoders(self.model.clone(encoder=fewer), cut)

    def stacked(self, places: Sequence[int], starts: Sequence[str]) -> PyTree:
        """Return `[seed, arm, ...]` for these places of the seed axis, an arm for each start."""
        chosen = np.asarray(places)
        return jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf)[chosen] for leaf in leaves], axis=1),
            *(self.by_start[start] for start in starts),
        )


def drop_of_members(params: PyTree, layers: int) -> PyTree:
    """Return parameters `[seed, ...]` without the top `layers`."""
    return jax.vmap(lambda member: bert.drop_layers(member, layers))(params) if layers else params


def recipe_of(settings: Settings) -> fine_tuning.Recipe:
    """Return how a configuration fine-tunes: warm-up over a tenth of the steps, as BERT."""
    return fine_tuning.Recipe(settings.fine_tuning_epochs, settings.weight_decay, 0.1, settings.eps, settings.clip)


class ShapeStages:
    """The stages of one shape."""

    def __init__(self, settings: Settings, name: str, shape: Shape, prepared: Prepared, stages: Stages) -> None:
        self.settings, self.name, self.shape, self.stages = settings, name, shape, stages
        self.text, self.plan, self.tasks, self.probes = prepared
        self._seeds = settings.seed_list

    def pretrain(self) -> Arrays:
        """Pre-train every seed; leaves parameters at the end, `params/...`, and records `[seed, record]`."""
        ensemble = build_ensemble(self.settings, self.shape, self.text, self.plan)
        trained = self.stages.train(f"pretrain-{self.name}", ensemble, self._seeds)
        records = training.by_arm(trained.records, {"record": "record_", "validation": "validation_"})
        arrays = {name: values if name.endswith("step") else values[0] for name, values in records.items()}
        return arrays | named(jax.tree.map(lambda leaf: leaf[:, 0], trained.members.state.params), "params")

    def encoders(self, pretrained: Arrays) -> Encoders:
        """Return the encoders that a pre-training leaves, and the same before their first step."""
        model = build_model(self.settings, self.shape, self.text)
        ensemble = build_ensemble(self.settings, self.shape, self.text, self.plan)
        start = jax.tree.map(lambda leaf: np.asarray(leaf[:, 0]), ensemble.start(self._seeds).state.params)
        by_start = {"pretrained": unnamed(pretrained, "params"), "control": start}
        whole = Encoders(model, {name: bert.discard_head(params) for name, params in by_start.items()})
        return whole.without(self.shape.drop)

    def rates(self, task: TaskData, encoders: Encoders) -> Arrays:
        """Try every learning rate on a few seeds; leaves accuracies `development[rate, start, seed]`, and the `rate[start]`."""
        tried = self.settings.fine_tuning_rates
        places = list(range(min(self.settings.rate_seeds, len(self._seeds))))
        arms = [(rate, start) for rate in tried for start in encoders.by_start]
        rates = np.tile([rate for rate, _ in arms], (len(places), 1))
        name = f"rates-{self.name}-{task.name}"
        members, ensemble = self._tuned(
            name,
            encoders,
            task,
            task.kind,
            places,
            [UNREPORTED + place for place in places],
            [start for _, start in arms],
            rates,
        )
        confusions = self._confusions(members, ensemble, encoders, task, task.kind, ["development"])
        found = accuracy(confusions["development"])  # [seed, arm]
        development = found.T.reshape(len(tried), len(encoders.by_start), len(places))
        best = np.argmax(development.mean(-1), axis=0)
        return {"development": development, "rate": np.asarray(tried)[best], "tried": np.asarray(tried)}

    def scores(self, task: TaskData, encoders: Encoders, rates: np.ndarray, stage: str, kind: HeadKind | None = None) -> Arrays:
        """Fine-tune every seed at the rate of its start; leaves `SPLIT_accuracy` and `SPLIT_macro_f1` `[start, seed, run]`.

        SPLIT: development, and test, which is read here and nowhere else. kind: of the head (default: the task's own).
        """
        kind = kind or task.kind
        runs = self.settings.fine_tuning_seeds
        places = [place for place in range(len(self._seeds)) for _ in range(runs)]
        conditions = list(range(runs)) * len(self._seeds)
        starts = list(encoders.by_start)
        members, ensemble = self._tuned(
            stage, encoders, task, kind, places, conditions, starts, np.tile(rates, (len(places), 1))
        )
        arrays: Arrays = {}
        for split, confusion in self._confusions(members, ensemble, encoders, task, kind, list(task.splits)).items():
            for measure, of in (("accuracy", accuracy), ("macro_f1", macro_f1)):
                by_run = of(confusion).reshape(len(self._seeds), runs, len(starts))
                arrays[f"{split}_{measure}"] = np.moveaxis(by_run, 2, 0)
        finite = np.stack([np.isfinite(leaf).all(tuple(range(2, leaf.ndim))) for leaf in jax.tree.leaves(members)]).all(0)
        arrays["finite"] = np.moveaxis(finite.reshape(len(self._seeds), runs, len(starts)), 2, 0)
        if kind == "layer_mix":
            arrays["mix"] = np.moveaxis(members["head"]["mix"]["weights"], 1, 0)
        return arrays

    def without_layers(self, task: TaskData, encoders: Encoders, rates: np.ndarray) -> dict[str, Arrays]:
        """Fine-tune pre-trained encoders without 1, 2, ... top layers, and a mix of the frozen layers; return what is left."""
        left, pretrained = {}, Encoders(encoders.model, {STARTS[0]: encoders.by_start[STARTS[0]]})
        for number in range(1, encoders.model.encoder.layers):
            stage = f"dropped-{self.name}-{number}"
            work = functools.partial(self.scores, task, pretrained.without(number), rates[:1], stage)
            left[stage] = self.stages.once(stage, work)
        if self.settings.layer_mix:
            stage, largest = f"mix-{self.name}", np.full(len(STARTS), max(self.settings.fine_tuning_rates))
            work = functools.partial(self.scores, task, encoders, largest, stage, "layer_mix")
            left[stage] = self.stages.once(stage, work)
        return left

    def _objective(self, encoders: Encoders, task: TaskData, kind: HeadKind) -> fine_tuning.Objective:
        return fine_tuning.Objective(encoders.model, kind, len(task.labels), self.settings.fine_tuning_dropout)

    def _tuned(
        self, stage: str, encoders: Encoders, task: TaskData, kind: HeadKind, places: Sequence[int], conditions: Sequence[int],
        starts: Sequence[str], rates: np.ndarray,
    ) -> tuple[PyTree, training.Ensemble]:  # fmt: skip
        """Return fine-tuned parameters `[seed, arm, ...]` and the ensemble that they are of."""
        objective = self._objective(encoders, task, kind)
        seeds = [self._seeds[place] for place in places]
        ensemble = fine_tuning.build_ensemble(
            objective, recipe_of(self.settings), task.feed, seeds, conditions, encoders.stacked(places, starts), rates,
            self.plan.mesh,
        )  # fmt: skip
        trained = self.stages.train(stage, ensemble, seeds, conditions)
        return trained.members.state.params, ensemble

    def _confusions(
        self,
        members: PyTree,
        ensemble: training.Ensemble,
        encoders: Encoders,
        task: TaskData,
        kind: HeadKind,
        splits: Sequence[str],
    ) -> dict[str, np.ndarray]:
        """Return the confusion matrix of every member `[seed, arm, label, label]` on these splits, which are read together."""
        objective = self._objective(encoders, task, kind)

        def confusions(params: PyTree, rows: Mapping[str, TaskRows]) -> dict[str, jax.Array]:
            return {split: objective.confusion(params, of_split) for split, of_split in rows.items()}

        found: dict[str, np.ndarray] = map_members(
            confusions, members, {split: task.splits[split] for split in splits}, ensemble.devices
        )
        return found

    def probe(self, encoders: Encoders, pretrained: Arrays) -> Arrays:
        """Measure retrieval by layer, `retrieval_FITTED[start, seed, layer]`, and similarity, `similarity_TABLE[seed]`."""
        arrays: Arrays = {}
        if self.probes.parallel is not None:
            arrays |= retrieval(encoders, self.probes.parallel, self.plan.mesh)
        if self.probes.pairs is not None:
            tables = {"input": pretrained["params/embed/embedding"]}
            if not self.shape.coupled:
                tables["output"] = pretrained["params/head/embedding"]
            for name, table in tables.items():
                pairs = self.probes.pairs
                arrays[f"similarity_{name}"] = np.array([similarity_correlation(of_seed, pairs) for of_seed in table])
                arrays[f"similarity_{name}_interval"] = np.array([bootstrap_interval(of_seed, pairs) for of_seed in table])
        return arrays


def retrieval(encoders: Encoders, parallel: ParallelRows, devices: int) -> Arrays:
    """Return the accuracy of retrieval after every layer, `[start, seed, layer]`, with the difference fitted both ways."""

    def means(params: PyTree, rows: TaskRows) -> jax.Array:
        """Return the mean state of each sentence, without [CLS] and [SEP], `[batches, layers + 1, rows, width]`."""

        def of_batch(rows: TaskRows) -> jax.Array:
            segments = jnp.asarray(rows.segments)
            states = encoders.model.apply({"params": params}, rows.tokens, segments=segments, every_layer=True, method="encode")
            last = jnp.sum(segments, axis=1, keepdims=True) - 1
            place = jnp.arange(segments.shape[1])
            inside = (place > 0) & (place < last)
            counted = jnp.maximum(jnp.sum(inside, axis=1), 1)[:, None]
            return jnp.sum(jnp.asarray(states) * inside[..., None], axis=2) / counted

        return jax.lax.map(of_batch, rows)

    members = encoders.stacked(range(len(jax.tree.leaves(encoders.by_start["pretrained"])[0])), list(encoders.by_start))
    sides = []
    for rows in (parallel.source, parallel.target):
        found = map_members(means, members, rows, devices)  # [seed, start, batches, layers + 1, rows, width]
        together = np.moveaxis(found, 3, 2)  # [seed, start, layers + 1, batches, rows, width]
        sides.append(together.reshape(*together.shape[:3], -1, together.shape[-1])[..., : parallel.number, :])
    arrays = {}
    for fitted in FITTED:
        found = [retrieval_accuracies(source, target, fitted) for source, target in zip(*sides, strict=True)]
        arrays[f"retrieval_{fitted}"] = np.moveaxis(np.array(found), 1, 0)
    return arrays


def retrieval_accuracies(source: np.ndarray, target: np.ndarray, fitted: Fitted) -> list[list[float]]:
    """Return the accuracy of retrieval by start and layer, of vectors `[start, layer, sentence, width]`."""
    return [
        [translation_accuracy(*vectors, fitted) for vectors in zip(*of_start, strict=True)]
        for of_start in zip(source, target, strict=True)
    ]
