"""The members of a run on text: tied and untied models of every seed, and what is recorded of them."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training, tying
from tiejax.geometry.uses import use_gradients
from tiejax.pretraining.loss import predict_slots
from tiejax.statistics.arms import ARMS
from tiejax.statistics.untie_curve import Arms
from tiejax.studies.text_mlm.settings import Settings
from tiejax.studies.text_mlm.text import StepPlan, Text, buckets_of, pairs_of
from tiejax.text import masking as text_batches
from tiejax.text import packing as text_rows
from tiejax.training import Ensemble

TIED = ("embed/embedding", "head/embedding")


def build_model(settings: Settings, text: Text) -> Any:
    """Return the masked LM of a configuration."""

    dtype = None if settings.compute_dtype == "float32" else jnp.dtype(settings.compute_dtype)
    encoder = models.Transformer(
        settings.layers,
        settings.width,
        settings.heads,
        settings.feed_forward,
        settings.activation,
        settings.dropout,
        settings.identical_layers,
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
        dtype=dtype,
    )


def build_ensemble(settings: Settings, text: Text, planned: StepPlan) -> "Ensemble":
    """Return tied and untied members of a resolved configuration, with what is recorded of them."""

    model = build_model(settings, text)
    own_rows, packed = -(-planned.rows // planned.mesh), settings.packing == "packed"
    masking = text_batches.Masking(text.twins, text.vocabulary.special, text.vocabulary.mask, planned.slots)

    def init(key: jax.Array) -> Any:
        return model.init(key, jnp.zeros((1, settings.max_length), jnp.int32))["params"]

    def sample(seed_key: Any, step: jax.Array, fed: Any) -> Any:
        key = jax.random.fold_in(training.stream(seed_key.key, "data"), step)
        return masking.visit(fed.tokens, fed.segments, fed.row, key)

    def predict(params: Any, batch: Any, key: jax.Array | None) -> tuple[jax.Array, Any]:
        drops = key is not None and settings.dropout > 0
        # Other rows, other masks of dropout.
        rngs = {"dropout": jax.random.fold_in(key, batch.row[0])} if key is not None and drops else None
        encoded = model.apply({"params": params}, batch.tokens, None, batch.segments, not drops, rngs=rngs, method="encode")
        states = encoded.reshape(-1, settings.width)[batch.slot]
        return predict_slots(states, params["head"]["embedding"], batch.target, batch.weight)

    def loss(params: Any, batch: Any, key: jax.Array | None) -> Any:
        sum_of, predicted = predict(params, batch, key)
        right = jnp.sum(batch.weight * predicted.correct)
        number, sums, rights = training.total((jnp.sum(batch.weight), sum_of, right))
        number = jnp.maximum(number, 1)
        return sum_of / number, {"loss": sums / number, "accuracy": rights / number}

    pairs = jnp.asarray(pairs_of(text)[0], jnp.int32).reshape(-1, 2)
    names, bucket = buckets_of(text)

    def measure(params: Any, batch: Any, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
        (_, metrics), own = jax.value_and_grad(loss, has_aux=True)(params, batch, None)
        found = {f"train_{name}": value for name, value in metrics.items()}
        # Of the tied loss these sum to the table's gradient.
        of_input, of_output = training.total((own["embed"]["embedding"], own["head"]["embedding"]))
        uses = use_gradients(of_input, of_output, bucket, len(names))
        found |= {f"use_{name}": value for name, value in uses.items()}
        for name, part in (("input", "embed"), ("output", "head")):
            table = params[part]["embedding"]
            found[f"distance_{name}"] = jnp.linalg.norm(table[pairs[:, 0]] - table[pairs[:, 1]], axis=-1)
            found[f"norm_{name}"] = jnp.mean(jnp.linalg.norm(table, axis=-1))
        finite = training.all_finite((params, metrics))
        return found | {"overflow": training.total(batch.overflow), "finite": finite}

    stream = text_rows.Stream(*text.validation, settings.max_length, text.vocabulary.pad, 0, packed)
    shape = settings.validation_batches, planned.rows, settings.max_length
    everywhere = np.arange(own_rows * planned.mesh)
    held_out = [
        text_rows.take_rows(leaf.reshape(shape), everywhere, empty)
        for leaf, empty in zip(stream.rows(0, shape[0] * shape[1]), (text.vocabulary.pad, 0), strict=True)
    ]

    def validate(params: Any, batch: Any, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
        visit = jax.random.fold_in(training.stream(seed_key.key, "validation"), step)
        first = jax.lax.axis_index(training.DATA) * own_rows
        row = first + jnp.arange(own_rows)

        def one(part: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            number, tokens, segments = part
            tokens, segments = (jax.lax.dynamic_slice_in_dim(leaf, first, own_rows) for leaf in (tokens, segments))
            drawn = masking.visit(tokens, segments, row, jax.random.fold_in(visit, number))
            _, predicted = predict(params, drawn, None)
            rows = jnp.stack([drawn.weight, drawn.weight * predicted.cross_entropy, drawn.weight * predicted.correct])
            return rows @ jax.nn.one_hot(jnp.asarray(bucket)[drawn.target], len(names))

        parts = jnp.arange(settings.validation_batches), *(jnp.asarray(leaf) for leaf in held_out)
        counted, nats, right = training.total(jnp.sum(jax.lax.map(one, parts), axis=0))
        return {
            "loss": jnp.sum(nats) / jnp.sum(counted),
            "accuracy": jnp.sum(right) / jnp.sum(counted),
            "bucket_loss": nats / counted,
            "bucket_accuracy": right / counted,
            "bucket_count": counted,
        }

    schedule, arms = schedule_of(settings, planned), arms_of(settings, planned)
    arm_ties, phases = np.array([[False], [True]]), None
    if arms is not None:
        arm_ties, phases = training.phases_of_arms(arms.step.tolist(), planned.steps, arms.policy.tolist(), arms.new.tolist())
    counts: Literal["all", "leaf"] = "all" if arms is None else "leaf"
    return training.Ensemble(
        init=init,
        sample=sample,
        loss=loss,
        optimizer=training.make_optimizer(settings.optimizer, schedule, settings.weight_decay, eps=settings.eps, counts=counts),
        ties=[tying.Tie(*TIED)],
        arm_ties=arm_ties,
        phases=phases,
        steps=planned.steps,
        recorders={
            "record": training.Recorder(settings.record_every, measure),
            "validation": training.Recorder(settings.validate_every, validate),
        },
        feed=text_rows.TextFeed(*text.train, settings.max_length, text.vocabulary.pad, planned.rows, packed),
        vmap_members=False,
        devices=planned.mesh,
    )


def arms_of(settings: Settings, planned: StepPlan) -> "Arms | None":
    """Return the arms of a run whose members untie; None for tied against untied."""
    if settings.untie_at is None:
        return None

    return Arms.of(settings.untie_at, planned.steps, [settings.untie_policy], [settings.untie_new])


def schedule_of(settings: Settings, planned: StepPlan) -> Any:
    """Return the learning-rate schedule of a run."""

    rates = settings.learning_rate, settings.minimum_learning_rate
    return training.make_schedule(settings.schedule, *rates, planned.half_period)


def reach(settings: Settings, planned: StepPlan) -> dict[str, float]:
    """Return the sum of the learning rates, about as far as Adam moves a coordinate, and how far apart two words start."""

    rates = jnp.broadcast_to(schedule_of(settings, planned)(jnp.arange(planned.steps)), (planned.steps,))
    return {"per_coordinate": float(jnp.sum(rates)), "initial": settings.embedding_std * math.sqrt(2)}


def named_arrays(
    records: Mapping[str, Mapping[str, np.ndarray]], settings: Settings, text: Text, arms: "Arms | None" = None
) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[arm, seed, record, ...]`, validations under `validation_`."""

    arrays = {
        "arms": np.array(ARMS),
        "seeds": np.array(settings.seed_list),
        "bucket_names": np.array(buckets_of(text)[0]),
        **pairs_of(text)[1],
    }
    if arms is not None:
        arrays |= arms.arrays
    return arrays | training.by_arm(records, {"record": "", "validation": "validation_"})


def facts_of_model(settings: Settings, ensemble: "Ensemble") -> dict[str, Any]:
    """Return what results say of the model, with the parameters of each arm."""

    shapes = jax.eval_shape(ensemble.init, jax.random.key(0))
    number = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    names = ("activation", "positions", "layer_norm", "dropout", "compute_dtype", "embedding_std")
    return {
        "architecture": "transformer",
        **{name: getattr(settings, name) for name in names},
        "parameters_untied": number,
        "parameters_tied": number - math.prod(shapes["head"]["embedding"].shape),
    }
