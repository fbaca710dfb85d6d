"""The ensemble of pre-training: one shape with many seeds, all on the same batches with the same masks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.text import Text
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.pretraining.masked_lm import MaskedLM
from tiejax.pretraining.step_plan import StepPlan
from tiejax.pretraining.validation import Validation, held_out_rows
from tiejax.text.masking import MaskedRows, Masking
from tiejax.text.packing import Stream, TextFeed
from tiejax.training.optimizer import make_optimizer, warm_up_and_decay

ORDER = 0  # the seed of the batches and masks of all members


def build_model(settings: Settings, shape: Shape, text: Text) -> models.LanguageModel:
    """Return the masked LM of a shape for the vocabulary of a text."""
    dtype = None if settings.compute_dtype == "float32" else jnp.dtype(settings.compute_dtype)
    return bert.build(shape, text.twins.vocabulary, settings.max_length, rematerialise=settings.rematerialise, dtype=dtype)


def build_ensemble(settings: Settings, shape: Shape, text: Text, plan: StepPlan) -> training.Ensemble:
    """Build the pre-training ensemble of a shape, with its recorders."""
    vocabulary = text.vocabulary
    objective = MaskedLM(build_model(settings, shape, text), shape.coupled)
    masking = Masking(text.twins, vocabulary.special, vocabulary.mask, plan.slots, whole_sentences=settings.cipher)
    stream = Stream(*text.validation, settings.max_length, vocabulary.pad, ORDER)
    held_out = held_out_rows(stream, settings.validation_batches, plan)
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
        source=TextFeed(*text.train, settings.max_length, vocabulary.pad, plan.rows, order=ORDER, languages=text.languages),
        members=training.Scanned(),
        devices=plan.mesh,
        precision=settings.matmul_precision,
    )
