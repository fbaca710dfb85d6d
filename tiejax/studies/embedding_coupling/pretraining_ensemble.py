"""The members of pre-training: one shape, many seeds, all on the same batches with the same masks.

In shapes, `rows` are one device's rows of a step, `length` tokens each, with `slots` for those of them that are masked.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training, tying
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.pretraining.loss import Predicted
from tiejax.pretraining.masked import Head, masked_loss_on_devices, predict_masked
from tiejax.pretraining.step_plan import StepPlan
from tiejax.pretraining.validation import Validation, held_out_rows
from tiejax.studies.embedding_coupling.settings import Settings
from tiejax.studies.embedding_coupling.text import Text
from tiejax.text.masking import MaskedRows, Masking
from tiejax.text.packing import Stream, TextFeed
from tiejax.training.optimizer import make_optimizer
from tiejax.training.schedule import warm_up_and_decay

PyTree = Any
TIE = tying.Tie(*models.TABLE_PATHS)
ORDER = 0  # the seed whose batches and masks all members see


def build_model(settings: Settings, shape: Shape, text: Text) -> models.LanguageModel:
    """Return the masked LM of a shape, for the vocabulary of a text."""
    dtype = None if settings.compute_dtype == "float32" else jnp.dtype(settings.compute_dtype)
    return bert.build(
        shape, text.twins.vocabulary, settings.max_length, padding=None, rematerialise=settings.rematerialise, dtype=dtype
    )


@dataclasses.dataclass(frozen=True)
class PretrainingObjective:
    """What every member does: how it starts, what it reads, its loss. A coupled table is stored once."""

    model: models.LanguageModel
    ties: tuple[tying.Tie, ...]
    masking: Masking

    @classmethod
    def of(cls, settings: Settings, shape: Shape, text: Text, plan: StepPlan) -> "PretrainingObjective":
        """Return the members of a shape."""
        vocabulary = text.vocabulary
        masking = Masking(text.twins, vocabulary.special, vocabulary.mask, plan.slots, whole_sentences=settings.cipher)
        return cls(build_model(settings, shape, text), (TIE,) if shape.coupled else (), masking)

    def init(self, key: jax.Array) -> PyTree:
        """Return initial parameters, each distinct array once."""
        return tying.store(self.model.init(key, jnp.zeros((1, 1), jnp.int32))["params"], self.ties)

    def sample(self, seed_key: training.SeedKey, step: jax.Array, rows: Any) -> MaskedRows:
        """Return the rows of a step with their masks, the same for every seed."""
        key = jax.random.fold_in(training.stream(jax.random.key(ORDER), "data"), step)
        return self.masking.visit(rows.tokens, rows.segments, rows.row, key)

    def _read(self, stored: PyTree, masked: MaskedRows) -> tuple[jax.Array, Head]:
        """Return the encoder's states and the head that reads them."""
        variables = {"params": tying.view(stored, self.ties)}
        states = self.model.apply(variables, masked.tokens, segments=masked.segments, method="encode")
        head = variables["params"][bert.HEAD]

        def transform(states: jax.Array) -> jax.Array:
            return jnp.asarray(self.model.apply(variables, states, method="transform"))

        return jnp.asarray(states), Head(head["embedding"], transform, head["bias"])

    def loss(self, stored: PyTree, masked: MaskedRows, key: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return this device's share of the mean loss over the masked tokens of a step, and the step's metrics."""
        return masked_loss_on_devices(*self._read(stored, masked), masked)

    def predict(self, stored: PyTree, masked: MaskedRows) -> Predicted:
        """Return how every slot is predicted."""
        return predict_masked(*self._read(stored, masked), masked, masked.weight)[1]


def build_ensemble(settings: Settings, shape: Shape, text: Text, plan: StepPlan) -> training.Ensemble:
    """Return the members of a shape, with what is recorded of them."""
    objective = PretrainingObjective.of(settings, shape, text, plan)
    stream = Stream(*text.validation, settings.max_length, text.vocabulary.pad, ORDER)
    held_out = held_out_rows(stream, settings.validation_batches, plan)
    bucket = np.zeros(text.twins.vocabulary, np.int32)
    validation = Validation(objective.predict, objective.masking, held_out, bucket, 1, plan.rows_of_device)

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
        sample=objective.sample,
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
        feed=TextFeed(*text.train, settings.max_length, text.vocabulary.pad, plan.rows, order=ORDER, languages=text.languages),
        members="scanned",
        devices=plan.mesh,
    )
