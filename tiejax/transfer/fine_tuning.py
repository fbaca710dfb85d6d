"""Fine-tuning ensembles: pre-trained encoders of many seeds, fine-tuned on one task at several learning rates.

Members are `[seed, arm]`. A seed here is a pair of a pre-training seed and a fine-tuning seed (the condition); together they
determine the order of the sentences and the initial head. The arms of a seed differ in initial encoder and learning rate.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from tiejax import training
from tiejax.models import LanguageModel
from tiejax.training import seed_keys
from tiejax.training.choices import Precision
from tiejax.training.optimizer import make_optimizer, warm_up_and_decay, with_own_rates
from tiejax.training.placement import DATA
from tiejax.transfer.batches import TaskFeed, TaskRows
from tiejax.transfer.encoding import NO_LABEL
from tiejax.transfer.task_head import HeadKind, Pooling, head_logits, init_head

PyTree = Any
ENCODER, HEAD = "encoder", "head"


@dataclasses.dataclass(frozen=True)
class Objective:
    """Fine-tuning objective of a member with parameters `encoder` (a language model without prediction head) and `head`.

    dropout: dropout rate on the input of the classifier. pooling: see `head_logits`; needed for "layer_mix".
    """

    model: LanguageModel
    kind: HeadKind
    labels: int
    dropout: float = 0.0
    pooling: Pooling | None = None

    @property
    def frozen(self) -> bool:
        """Whether the encoder is frozen: only for a mix of layers."""
        return self.kind == "layer_mix"

    def new_head(self, key: Key[Array, ""]) -> PyTree:
        """Return the parameters of an untrained head."""
        return init_head(key, self.kind, self.model.width, self.labels, self.model.encoder.layers)

    def logits(self, params: PyTree, rows: TaskRows, key: Key[Array, ""] | None) -> Float[Array, "rows length labels"]:
        """Return the logits of every label at every token. key: random key for dropout, None for no dropout."""
        encoder = jax.lax.stop_gradient(params[ENCODER]) if self.frozen else params[ENCODER]
        tokens, segments = (jnp.asarray(leaf, jnp.int32) for leaf in (rows.tokens, rows.segments))
        states = self.model.apply({"params": encoder}, tokens, segments=segments, every_layer=self.frozen, method="encode")

        def drop(x: jax.Array) -> jax.Array:
            assert key is not None
            kept = jax.random.bernoulli(key, 1 - self.dropout, x.shape)
            return jnp.where(kept, x / (1 - self.dropout), 0)

        dropped = drop if key is not None and self.dropout else None
        return head_logits(params[HEAD], self.kind, jnp.asarray(states), segments, self.pooling, dropped)

    def loss(self, params: PyTree, rows: TaskRows, key: Key[Array, ""] | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return this device's share of the mean cross-entropy (nats) over the labels, and the step's metrics."""
        if key is not None and jax.lax.axis_size(DATA) > 1:
            # Devices hold different rows, which need different dropout masks.
            key = jax.random.fold_in(key, jax.lax.axis_index(DATA))
        logits, label = self.logits(params, rows, key), jnp.asarray(rows.label)
        asked = label != NO_LABEL
        logs = jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
        chosen = jnp.take_along_axis(logs, jnp.where(asked, label, 0)[..., None], axis=-1)[..., 0]
        nats, right = -jnp.sum(jnp.where(asked, chosen, 0)), jnp.sum(asked & (jnp.argmax(logits, axis=-1) == label))
        number, all_nats, all_right = training.total((jnp.sum(asked), nats, right))
        number = jnp.maximum(number, 1)
        return nats / number, {"loss": all_nats / number, "accuracy": all_right / number}

    def confusion(self, params: PyTree, rows: TaskRows) -> Int[Array, "labels labels"]:
        """Return the confusion matrix, label x prediction, over rows `[batches, rows, length]`."""

        def batch_confusion(batch: TaskRows) -> jax.Array:
            predicted, label = jnp.argmax(self.logits(params, batch, None), axis=-1), jnp.asarray(batch.label)
            pair = jnp.where(label == NO_LABEL, self.labels**2, label * self.labels + predicted)
            return jnp.bincount(pair.ravel(), length=self.labels**2 + 1)[:-1]

        counts = jnp.sum(jax.lax.map(batch_confusion, jax.tree.map(jnp.asarray, rows)), axis=0)
        return counts.reshape(self.labels, self.labels)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of fine-tuning by AdamW.

    warm_up: share of the steps, followed by linear decay. max_norm: limit of the gradient norm.
    """

    epochs: float
    weight_decay: float
    warm_up: float
    eps: float
    max_norm: float
    precision: Precision = "highest"


def start_members(
    objective: Objective,
    seeds: Sequence[int],
    conditions: Sequence[int],
    encoders: PyTree,
    rates: Float[np.ndarray, "seeds arms"],
    optimizer: optax.GradientTransformation,
) -> training.TrainState:
    """Return members `[seed, arm]` before their first step: encoders `[seed, arm, ...]`, each with a new head.

    seeds, conditions: pre-training and fine-tuning seeds, which determine the heads. rates: learning rate of each member.
    """

    def start_seed(seed_key: training.SeedKey, encoders: PyTree, rates: jax.Array) -> training.TrainState:
        key = jax.random.fold_in(training.stream(seed_key.key, "task head"), seed_key.condition)
        head = objective.new_head(key)

        def member(encoder: PyTree, rate: jax.Array) -> training.TrainState:
            params = {ENCODER: encoder, HEAD: head}
            return training.TrainState(params, optimizer.init(params)._replace(rates=rate[None]))

        return jax.vmap(member)(encoders, rates)

    return jax.jit(jax.vmap(start_seed))(seed_keys(seeds, conditions), encoders, jnp.asarray(rates, jnp.float32))


def build_ensemble(
    objective: Objective,
    recipe: Recipe,
    feed: TaskFeed,
    encoders: PyTree,
    devices: int = 1,
) -> training.Ensemble:
    """Return the ensemble that fine-tunes members `[seed, arm]`; its `init` only gives their shapes.

    Train it with `start=` members of `start_members`, which take its optimizer. Each member has its own learning rate; a frozen
    encoder has zero updates. encoders: of members, `[seed, arm, ...]`, of which only the number of arms and the shapes count,
    so that one ensemble trains all encoders of a shape.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), encoders)
    arms = jax.tree.leaves(encoders)[0].shape[1]
    steps = max(1, round(recipe.epochs * feed.steps_of_epoch))
    schedule = warm_up_and_decay(1.0, round(recipe.warm_up * steps), steps)

    def make(rate: jax.Array) -> optax.GradientTransformation:
        adamw = make_optimizer("adamw", rate, recipe.weight_decay, eps=recipe.eps, decayed="matrices")
        if not objective.frozen:
            return adamw
        labels = {ENCODER: "frozen", HEAD: "trained"}
        return optax.partition({"trained": adamw, "frozen": optax.set_to_zero()}, lambda params: labels)

    def measure(params: PyTree, rows: TaskRows, seed_key: training.SeedKey, step: jax.Array) -> dict[str, jax.Array]:
        _, metrics = objective.loss(params, rows, None)
        return {**metrics, "finite": training.all_finite((params, metrics))}

    def init(key: jax.Array) -> PyTree:
        return {ENCODER: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), HEAD: objective.new_head(key)}

    return training.Ensemble(
        init=init,
        sample=lambda seed_key, step, fed: fed,
        loss=objective.loss,
        optimizer=with_own_rates(make, 1, schedule),
        ties=[],
        arm_ties=np.zeros((arms, 0), bool),
        steps=steps,
        recorders={"record": training.Recorder(max(1, steps // 10), measure)},
        max_norm=recipe.max_norm,
        source=feed,
        members=training.Scanned(),
        devices=devices,
        precision=recipe.precision,
        dropout_key=lambda seed_key: jax.random.fold_in(
            training.stream(seed_key.key, "fine-tuning dropout"), seed_key.condition
        ),
    )
