"""The encoders of a run, pre-trained or loaded from a checkpoint, without their head and dropped layers.

All seeds of a shape are pre-trained together, on the same batches with the same masks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training, tying
from tiejax.checkpoints.hub import weights
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.runs.stages import Stages
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.text import Text
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.pretraining.masked import TIE, MaskedLM
from tiejax.pretraining.step_plan import StepPlan
from tiejax.pretraining.validation import Validation, held_out_rows
from tiejax.text import masked_bigrams
from tiejax.text.masked_bigrams import sentences_of
from tiejax.text.masking import MaskedRows, Masking
from tiejax.text.packing import Stream, TextFeed
from tiejax.training.optimizer import make_optimizer, warm_up_and_decay

PyTree = Any
Arrays = dict[str, np.ndarray]
MODELS = "models"  # folder of the pre-trained models, in the hub's format
CHECKPOINT = "checkpoint"  # name of the encoder in a run from a checkpoint
PRETRAINED, CONTROL = STARTS = ("pretrained", "control")
ORDER = 0  # the seed of the batches and masks of all members


@dataclasses.dataclass(frozen=True)
class Encoders:
    """The encoders of one model, those of the reported seeds before those of the tuning seeds.

    by_start: parameters `[seed, ...]`, pre-trained and control. tables: word tables `[seed, ...]` by name, input and output.
    """

    model: models.LanguageModel
    by_start: Mapping[str, PyTree]
    tables: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def without(self, layers: int) -> "Encoders":
        """Return the encoders without their top `layers` layers."""
        if not layers:
            return self
        fewer = self.model.encoder.clone(layers=self.model.encoder.layers - layers)
        drop = jax.vmap(lambda params: bert.drop_layers(params, layers))
        cut = {start: drop(params) for start, params in self.by_start.items()}
        return dataclasses.replace(self, model=self.model.clone(encoder=fewer), by_start=cut)

    def only(self, start: str) -> "Encoders":
        """Return the encoders of one start."""
        return dataclasses.replace(self, by_start={start: self.by_start[start]})

    def stacked(self, indices: Sequence[int]) -> PyTree:
        """Return parameters `[seed, start, ...]` for these indices of the seed axis."""
        chosen = np.asarray(indices)
        starts = list(self.by_start.values())
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf)[chosen] for leaf in leaves], axis=1), *starts)


def build_model(settings: Settings, shape: Shape, text: Text) -> models.LanguageModel:
    """Return the masked LM of a shape for the vocabulary of a text."""
    dtype = None if settings.compute_dtype == "float32" else jnp.dtype(settings.compute_dtype)
    how: dict[str, Any] = {"rematerialise": settings.rematerialise, "kernel_std": settings.kernel_std, "dtype": dtype}
    return bert.build(shape, text.twins.vocabulary, settings.max_length, **how)


def feed_of(settings: Settings, text: Text, plan: StepPlan) -> TextFeed:
    """Return the feed of the training sentences, the same for all members."""
    padding = text.vocabulary.pad
    return TextFeed(*text.train, settings.max_length, padding, plan.rows, order=ORDER, languages=text.languages)


def validation_stream(settings: Settings, text: Text) -> Stream:
    """Return the stream of the validation sentences."""
    return Stream(*text.validation, settings.max_length, text.vocabulary.pad, ORDER)


def losses_of_bigrams(settings: Settings, text: Text, plan: StepPlan) -> dict[str, float]:
    """Return the losses (nats) of three bigram models of exactly the sentences that members read, on those of a validation."""
    read = sentences_of(feed_of(settings, text, plan).stream(ORDER), plan.steps * plan.rows)
    held_out = sentences_of(validation_stream(settings, text), settings.validation_batches * plan.rows)
    return masked_bigrams.losses_of_bigrams(read, held_out, text.twins, text.vocabulary.special, settings.cipher)


def build_ensemble(settings: Settings, shape: Shape, text: Text, plan: StepPlan) -> training.Ensemble:
    """Build the pre-training ensemble of a shape, with its recorders."""
    vocabulary = text.vocabulary
    objective = MaskedLM(build_model(settings, shape, text), shape.coupled)
    masking = Masking(text.twins, vocabulary.special, vocabulary.mask, plan.slots, whole_sentences=settings.cipher)
    held_out = held_out_rows(validation_stream(settings, text), settings.validation_batches, plan)
    bucket = np.zeros(text.twins.vocabulary, np.int32)
    validation = Validation(objective.predict, masking, held_out, bucket, 1, plan.rows_of_device)

    def sample(seed_key: training.SeedKey, step: jax.Array, rows: Any) -> MaskedRows:
        key = jax.random.fold_in(training.stream(jax.random.key(ORDER), "data"), step)
        return masking.visit(rows.tokens, rows.segments, rows.row, key)

    def measure(stored: Any, masked: MaskedRows, seed_key: training.SeedKey, step: jax.Array) -> dict[str, jax.Array]:
        _, metrics = objective.loss(stored, masked, None)
        finite = training.all_finite((stored, metrics))
        return {**metrics, "overflow": training.total(masked.overflow), "finite": finite}

    def validate(stored: Any, masked: MaskedRows, seed_key: training.SeedKey, step: jax.Array) -> dict[str, jax.Array]:
        measured = validation.measure(stored, training.stream(jax.random.key(ORDER), "validation"))
        return {name: measured[name] for name in ("loss", "accuracy")}

    schedule = warm_up_and_decay(settings.learning_rate, settings.warm_up, settings.steps)
    return training.Ensemble(
        init=objective.init,
        sample=sample,
        loss=objective.loss,
        optimizer=make_optimizer("adamw", schedule, settings.weight_decay, eps=settings.eps, decayed="matrices"),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        steps=plan.steps,
        recorders={
            "record": training.Recorder(settings.record_every, measure),
            "validation": training.Recorder(settings.validate_every, validate),
        },
        max_norm=settings.clip,
        source=feed_of(settings, text, plan),
        members=training.Scanned(),
        devices=plan.mesh,
        precision=settings.matmul_precision,
    )


def pretrain(settings: Settings, name: str, text: Text, plan: StepPlan, stages: Stages) -> Arrays:
    """Pre-train a shape with every seed, reported ones first.

    Returns records `[seed, record]`, final parameters as `params/PATH`, and initial ones without head as `start/PATH`.
    """
    ensemble = build_ensemble(settings, settings.every_shape[name], text, plan)
    start = ensemble.start(settings.trained_seeds).state
    trained = stages.train(f"pretrain.{name}", ensemble, settings.trained_seeds, start=start)
    records = training.by_arm(trained.records, {"record": "record_", "validation": "validation_"})
    arrays = {field: values if field.endswith("step") else values[0] for field, values in records.items()}
    for prefix, params in (("params", trained.members.state.params), ("start", bert.discard_head(start.params))):
        leaves = flax.traverse_util.flatten_dict({prefix: params}, sep="/")
        arrays |= {field: np.asarray(leaf[:, 0]) for field, leaf in leaves.items() if leaf is not None}
    return arrays


def encoders_of_shape(settings: Settings, shape: Shape, text: Text, pretrained: Arrays) -> Encoders:
    """Return the encoders after pre-training, and as controls the same encoders before their first step."""
    params = unnamed(pretrained, "params")
    by_start = {PRETRAINED: bert.discard_head(params), CONTROL: unnamed(pretrained, "start")}
    tables = {"input": params["embed"]["embedding"]}
    if not shape.coupled:
        tables["output"] = params[bert.HEAD]["embedding"]
    return Encoders(build_model(settings, shape, text), by_start, tables).without(shape.drop)


def load_start(settings: Settings) -> weights.Loaded:
    """Load the checkpoint that a run starts from; raises BadInput."""
    assert settings.start is not None
    try:
        loaded = weights.load(Path(settings.start))
    except CheckpointError as error:
        raise BadInput(f"--start {error.as_options()}") from None
    positions = loaded.model.max_positions
    if positions is not None and positions < settings.max_length:
        raise BadInput(
            f"--max_length: expected at most {positions}, the positions of {settings.start}, got {settings.max_length}"
        )
    if len(np.unique(loaded.owner)) < len(loaded.owner):
        raise BadInput(f"--start {settings.start}: its layers share weights, which fine-tuning would separate")
    dtype = None if settings.compute_dtype == "float32" else jnp.dtype(settings.compute_dtype)
    encoder = loaded.model.encoder.clone(dtype=dtype, rematerialise=settings.rematerialise)
    return loaded._replace(model=loaded.model.clone(dtype=dtype, encoder=encoder))


def checkpoint_params(loaded: weights.Loaded) -> PyTree:
    """Return the parameters of a checkpoint that are fine-tuned."""
    return {name: part for name, part in loaded.params.items() if name not in (bert.HEAD, "pooler")}


def checkpoint_size(loaded: weights.Loaded) -> int:
    """Return the number of parameters of a checkpoint that are fine-tuned."""
    return sum(leaf.size for leaf in jax.tree.leaves(checkpoint_params(loaded)))


def encoders_of_checkpoint(settings: Settings, loaded: weights.Loaded) -> Encoders:
    """Return the encoder of a checkpoint, repeated for every seed, and controls of its shape initialised by each seed."""

    def init(key: jax.Array) -> PyTree:
        return bert.discard_head(loaded.model.init(training.stream(key, "init"), jnp.zeros((1, 1), jnp.int32))["params"])

    seeds = settings.trained_seeds
    repeated = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(seeds), *leaf.shape)), checkpoint_params(loaded))
    control = jax.tree.map(np.asarray, jax.jit(jax.vmap(init))(training.seed_keys(seeds).key))
    tables = {"input": repeated["embed"]["embedding"]}
    if bert.HEAD in loaded.params and not loaded.tied:
        output = loaded.params[bert.HEAD]["embedding"]
        tables["output"] = np.broadcast_to(output, (len(seeds), *output.shape))
    return Encoders(loaded.model, {PRETRAINED: repeated, CONTROL: control}, tables)


def export(settings: Settings, name: str, text: Text, pretrained: Arrays, run: RunDirectory) -> None:
    """Write the pre-trained model of every seed in the hub's format to `models/SHAPE/seed-S`, unless it exists."""
    shape = settings.every_shape[name]
    model, stored = build_model(settings, shape, text), unnamed(pretrained, "params")
    for index, seed in enumerate(settings.seed_list):
        below = f"{MODELS}/{name}/seed-{seed}"
        if not run.whole(below):
            run.remove(below)
            member = jax.tree.map(lambda leaf, index=index: leaf[index], stored)
            if shape.coupled:  # files omit the target of the tie
                member = tying.view(member | {bert.HEAD: member[bert.HEAD] | {"embedding": None}}, (TIE,))
            try:
                weights.save(run.path / below, model, member, tied=shape.coupled, tokenizer=text.tokenizer)
            except CheckpointError as error:
                raise BadInput(f"--out {error.as_options()}") from None
            run.add([run.path / below])


def unnamed(arrays: Mapping[str, np.ndarray], prefix: str) -> PyTree:
    """Rebuild nested dictionaries from the arrays named `prefix/path`."""
    chosen = {name: leaf for name, leaf in arrays.items() if name.startswith(f"{prefix}/")}
    return flax.traverse_util.unflatten_dict(chosen, sep="/")[prefix]
