"""The ensemble of the text study: tied and untied masked LMs of every seed, their loss and their measurements.

In shapes, `rows` are the rows of a step on one device, with `length` tokens each and `slots` slots for masked tokens.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training, tying
from tiejax.geometry.uses import use_gradients
from tiejax.lab.studies.text_mlm import sizes
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.lab.studies.text_mlm.text import Text, buckets_of, pairs_of
from tiejax.pretraining.masked import MaskedLM
from tiejax.pretraining.step_plan import StepPlan
from tiejax.pretraining.validation import Validation, batches_of_epoch, held_out_rows
from tiejax.statistics.untie_arms import Arms
from tiejax.text import masked_bigrams
from tiejax.text.masking import MaskedRows, Masking
from tiejax.text.packing import Stream, TextFeed
from tiejax.training.optimizer import TableRecipe
from tiejax.training.records import Records


def build_model(settings: Settings, text: Text) -> Any:
    """Return the untied masked LM of the settings."""
    dtype = None if settings.compute_dtype == "float32" else jnp.dtype(settings.compute_dtype)
    encoder = models.Transformer(
        layers=settings.layers,
        width=settings.width,
        heads=settings.heads,
        feed_forward=settings.feed_forward,
        activation=settings.activation,
        dropout=settings.dropout,
        attention_dropout=settings.attention_dropout,
        identical_layers=settings.identical_layers,
        rematerialise=settings.rematerialise,
        norm_first=settings.layer_norm == "pre",
        dtype=dtype,
    )
    return models.LanguageModel(
        text.twins.vocabulary,
        settings.width,
        encoder,
        embedding_std=settings.embedding_std,
        padding=text.vocabulary.pad,
        max_positions=settings.max_length if settings.positions == "learned" else None,
        head_bias=settings.head_bias,
        dtype=dtype,
    )


def recorder_of(objective: MaskedLM, text: Text) -> Callable[..., dict[str, jax.Array]]:
    """Return what measures a record: metrics, the gradients of each use of the tables, and distances of pairs.

    `distance_*` is `[pairs]`, `use_bucket_*` is `[buckets]`; all others are scalars.
    """
    first, second = jnp.asarray(pairs_of(text)[0], jnp.int32).reshape(-1, 2).T
    names, bucket = buckets_of(text)

    def measure(params: Any, masked: MaskedRows, seed_key: training.SeedKey, step: jax.Array) -> dict[str, jax.Array]:
        (_, metrics), gradients = jax.value_and_grad(objective.loss, has_aux=True)(params, masked, None)
        # In a tied model, the (unweighted) sum of these is the gradient of the table.
        by_input, by_output = training.total((gradients["embed"]["embedding"], gradients["head"]["embedding"]))
        uses = use_gradients(by_input, by_output, bucket, len(names))
        measured = {f"train_{name}": value for name, value in metrics.items()}
        measured |= {f"use_{name}": value for name, value in uses.items()}
        for name, part in (("input", "embed"), ("output", "head")):
            table = params[part]["embedding"]
            measured[f"distance_{name}"] = jnp.linalg.norm(table[first] - table[second], axis=-1)
        finite = training.all_finite((params, metrics))
        return measured | {"overflow": training.total(masked.overflow), "finite": finite}

    return measure


def feed_of(settings: Settings, text: Text, plan: StepPlan) -> TextFeed:
    """Return the feed of the training sentences."""
    packed = settings.packing == "packed"
    return TextFeed(
        *text.train, settings.max_length, text.vocabulary.pad, plan.rows, packed, epochs_apart=settings.epochs_apart
    )


def validation_rows(settings: Settings, text: Text, plan: StepPlan) -> tuple[Stream, int]:
    """Return the stream of the validation sentences, and the number of batches of a validation."""
    stream = Stream(*text.validation, settings.max_length, text.vocabulary.pad, 0, settings.packing == "packed")
    if settings.validation_batches != "all":
        return stream, settings.validation_batches
    stream = dataclasses.replace(stream, multiple=plan.rows)
    return stream, batches_of_epoch(stream, plan)


def losses_of_bigrams(settings: Settings, text: Text, plan: StepPlan) -> dict[str, float]:
    """Return the losses (nats) of three bigram models of exactly the sentences that the first seed reads, on a validation's."""
    stream, batches = validation_rows(settings, text, plan)
    read = masked_bigrams.sentences_of(feed_of(settings, text, plan).stream(settings.seed_list[0]), plan.steps * plan.rows)
    held_out = masked_bigrams.sentences_of(stream, batches * plan.rows)
    return masked_bigrams.losses_of_bigrams(read, held_out, text.twins, text.vocabulary.special)


def build_ensemble(settings: Settings, text: Text, plan: StepPlan) -> training.Ensemble:
    """Build the ensemble of resolved settings, with its recorders."""
    objective, (stream, batches) = MaskedLM(build_model(settings, text)), validation_rows(settings, text, plan)
    masking, (names, bucket) = Masking(text.twins, text.vocabulary.special, text.vocabulary.mask, plan.slots), buckets_of(text)
    held_out = held_out_rows(stream, batches, plan)
    validation = Validation(objective.predict, masking, held_out, bucket, len(names), plan.rows_of_device)

    def sample(seed_key: training.SeedKey, step: jax.Array, rows: Any) -> MaskedRows:
        """Draw twins and masks for the rows of a step (`packing.Rows`), independently at every visit of a sentence."""
        key = jax.random.fold_in(training.stream(seed_key.key, "data"), step)
        return masking.visit(rows.tokens, rows.segments, rows.row, key)

    def validate(params: Any, masked: MaskedRows, seed_key: training.SeedKey, step: jax.Array) -> dict[str, jax.Array]:
        return validation.measure(params, jax.random.fold_in(training.stream(seed_key.key, "validation"), step))

    schedule, arms = schedule_of(settings, plan), arms_of(settings, plan)
    every = plan.epoch if settings.validate_every == "epoch" else settings.validate_every
    assert every is not None  # checked with the settings
    arm_ties, phases = np.array([[False], [True]]), None
    if arms is not None:
        arm_ties, phases = training.phases_of_arms(arms.step.tolist(), plan.steps, arms.policy.tolist(), arms.new.tolist())
    elif settings.equal_tables_arm:
        arm_ties, phases = training.phases_of_arms([-1, plan.steps, 0], plan.steps, [""] * 3, [""] * 3)
    counts: Literal["all", "leaf"] = "all" if phases is None else "leaf"
    tables = TableRecipe(models.TABLE_PATHS, rate=settings.table_rate)
    return training.Ensemble(
        init=objective.init,
        sample=sample,
        loss=objective.loss,
        optimizer=training.make_optimizer(
            settings.optimizer, schedule, settings.weight_decay, eps=settings.eps, counts=counts, tables=tables
        ),
        ties=[tying.Tie(*models.TABLE_PATHS, gradient=settings.tie_gradient)],
        arm_ties=arm_ties,
        phases=phases,
        steps=plan.steps,
        recorders={
            "record": training.Recorder(settings.record_every, recorder_of(objective, text), plan.epoch),
            "validation": training.Recorder(every, validate, plan.epoch),
        },
        source=feed_of(settings, text, plan),
        # Accelerators need few large kernels; on a CPU a single member is large enough.
        members=training.Unrolled() if jax.default_backend() == "cpu" else training.Vmapped(),
        devices=plan.mesh,
        precision=settings.matmul_precision,
    )


def arms_of(settings: Settings, plan: StepPlan) -> Arms | None:
    """Return the arms of a run with members that untie; None for a run of tied against untied models."""
    if settings.untie_at is None:
        return None
    return Arms.of(settings.untie_at, plan.steps, [settings.untie_policy], [settings.untie_new])


def names_of_arms(settings: Settings, plan: StepPlan) -> list[str]:
    """Return the name of every arm of a run."""
    arms = arms_of(settings, plan)
    return list(settings.compared) if arms is None else arms.names


def schedule_of(settings: Settings, plan: StepPlan) -> Any:
    """Return the learning-rate schedule of a run."""
    rates = settings.learning_rate, settings.minimum_learning_rate
    return training.make_schedule(settings.schedule, *rates, settings.half_period or plan.steps)


def reach(settings: Settings, plan: StepPlan) -> dict[str, float]:
    """Return how far Adam can move a coordinate of a table (about the sum of its rates), and how far apart two words start."""
    rates = settings.table_rate * jnp.broadcast_to(schedule_of(settings, plan)(jnp.arange(plan.steps)), (plan.steps,))
    return {"per_coordinate": float(jnp.sum(rates)), "initial": settings.embedding_std * math.sqrt(2)}


def facts_of_model(settings: Settings, vocabulary: int) -> dict[str, Any]:
    """Return the description of the model in results.json, with the parameter count of each arm."""
    names = ("activation", "positions", "layer_norm", "dropout", "compute_dtype", "embedding_std", "head_bias")
    number = sizes.parameters(settings, vocabulary)
    return {
        "architecture": "transformer",
        **{name: getattr(settings, name) for name in names},
        "parameters_untied": number,
        "parameters_tied": number - vocabulary * settings.width,
    }


def named_arrays(records: Records, settings: Settings, text: Text, arms: Arms | None = None) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[arm, seed, record, ...]`, validations as `validation_*`."""
    arrays = {
        "arms": np.array(settings.compared),
        "seeds": np.array(settings.seed_list),
        "bucket_names": np.array(buckets_of(text)[0]),
        **pairs_of(text)[1],
    }
    if arms is not None:
        arrays |= arms.arrays
    return arrays | training.by_arm(records, {"record": "", "validation": "validation_"})


def with_distances(records: Records, pairs: Mapping[str, np.ndarray]) -> Records:
    """Return records with the mean distances of each set of pairs, such as `distance_input/twins .5`.

    pairs: the description of the recorded pairs, from `pairs_of`.
    """
    if "record" not in records:
        return records
    record = dict(records["record"])
    for number, name in enumerate(pairs["set_names"]):
        for table in ("input", "output"):
            distances = record[f"distance_{table}"][..., pairs["pair_set"] == number]
            if distances.shape[-1]:
                record[f"distance_{table}/{name}"] = distances.mean(-1)
    return {**records, "record": record}
