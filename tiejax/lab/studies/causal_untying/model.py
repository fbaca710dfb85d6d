"""The models of a run: their loss, optimizer, records and validation."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import models, training, tying
from tiejax.geometry.uses import use_gradients
from tiejax.lab.studies.causal_untying import sizes
from tiejax.lab.studies.causal_untying.plan import Arm
from tiejax.lab.studies.causal_untying.settings import DECAY, WARM_UP, Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.models import counts, gpt2
from tiejax.pretraining.causal import causal_loss
from tiejax.pretraining.loss import Head, predict_slots
from tiejax.text.blocks import spread
from tiejax.training.optimizer import TableRecipe, leaves_at, make_optimizer

PyTree = Any
BETAS, EPS = (0.9, 0.95), 1e-8
TIE = tying.Tie(*models.TABLE_PATHS)
UNDECAYED = (*models.TABLE_PATHS, "positions/embedding")


class Shape(NamedTuple):
    """The size of a model, and its number of parameters with tied tables counted once."""

    width: int
    feed_forward: int
    parameters: int


def shape_of(settings: Settings, vocabulary: int, arm: Arm) -> Shape:
    """Return the size of an arm's model; the wide tied one has about as many parameters as an untied one."""
    assert settings.width is not None
    assert settings.layers is not None
    assert settings.context is not None
    hidden = sizes.FEED_FORWARD * settings.width
    size = vocabulary, settings.layers, settings.width, hidden, settings.context
    if not arm.wide:
        return Shape(settings.width, hidden, counts.gpt2(*size, tied=arm.tied) + arm.bias * vocabulary)
    width, untied = sizes.wide_width(settings), counts.gpt2(*size, tied=False)
    hidden = counts.feed_forward_for(untied, vocabulary, settings.layers, width, settings.context, tied=True)
    return Shape(width, hidden, counts.gpt2(vocabulary, settings.layers, width, hidden, settings.context, tied=True))


def build_model(settings: Settings, vocabulary: int, arm: Arm) -> models.LanguageModel:
    """Return the model of an arm."""
    assert settings.layers is not None
    assert settings.context is not None
    shape = shape_of(settings, vocabulary, arm)
    size = vocabulary, settings.layers, shape.width, settings.heads, shape.feed_forward, settings.context
    return gpt2.build(*size, head_bias=arm.bias)


def schedule_of(steps: int, cosine: bool) -> optax.Schedule:
    """Return the factor of the learning rate by step, at most 1.

    It rises linearly in the first 2 % of the steps, is constant until 80 % of them, and falls linearly to 0 at the last; or,
    with a cosine, falls from its maximum to 0 as 1/2 (1 + cos(pi x)).
    """
    rise = max(1, round(WARM_UP * steps))
    fall = steps - round(DECAY * steps)

    def factor(step: jax.Array) -> jax.Array:
        warm = jnp.minimum(1.0, (step + 1) / rise)
        if cosine:
            past = jnp.clip((step - rise) / (steps - rise), 0, 1)
            return warm * 0.5 * (1 + jnp.cos(math.pi * past))
        return jnp.minimum(warm, jnp.clip((steps - step) / (steps - fall), 0, 1))

    return factor


def optimizer_of(settings: Settings, steps: int, arm: Arm) -> optax.GradientTransformation:
    """Return AdamW, whose learning rate is a factor in its state times the schedule; tables and vectors do not decay.

    Its state has the same leaves for all arms, so that a child can continue the state of its parent.
    """
    optimizer = make_optimizer(
        "adamw",
        schedule_of(steps, arm.cosine),
        settings.weight_decay,
        BETAS,
        EPS,
        counts="leaf",
        decayed="matrices",
        own_rates=True,
        tables=TableRecipe(UNDECAYED, weight_decay=0.0),
    )
    if arm.change.rate == 1:
        return optimizer
    new = [getattr(TIE, arm.change.new)]
    return optax.chain(optimizer, optax.masked(optax.scale(arm.change.rate), lambda params: leaves_at(params, new)))


def tie_of(arm: Arm) -> tying.Tie:
    """Return the tie between the two tables of an arm, with the weights of its uses."""
    return TIE if arm.weights == (1.0, 1.0) else dataclasses.replace(TIE, gradient=arm.weights)


class Objective(NamedTuple):
    """The loss of a model on blocks of tokens `[rows, context]`, with what is recorded of it.

    bucket: the bucket of every token, out of `buckets`.
    """

    model: models.LanguageModel
    bucket: np.ndarray
    buckets: int

    def init(self, key: jax.Array) -> PyTree:
        """Return initial parameters, with both tables."""
        return self.model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    def states(self, params: PyTree, tokens: jax.Array) -> jax.Array:
        """Return the encoded states, `[rows, context, width]`."""
        return jnp.asarray(self.model.apply({"params": params}, tokens, method="encode"))

    def mean(self, params: PyTree, tokens: jax.Array) -> jax.Array:
        """Return the mean loss in nats a token."""
        return causal_loss(self.states(params, tokens), _head(params), tokens, jnp.ones(len(tokens)))

    def loss(self, params: PyTree, tokens: jax.Array, key: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the mean loss as `training.Ensemble` takes it; the key is not used, for want of dropout."""
        return self.mean(params, tokens), {}

    def record(self, params: PyTree, tokens: jax.Array) -> dict[str, jax.Array]:
        """Return the loss on a batch, norms, ratio and cosine of the gradients of the two tables, and their distance.

        distance: |E_in - E_out| / |E_in|, with Frobenius norms.
        """
        loss, grads = jax.value_and_grad(self.mean)(params, tokens)
        uses = use_gradients(grads["embed"]["embedding"], grads["head"]["embedding"], self.bucket, self.buckets)
        source, target = params["embed"]["embedding"], params["head"]["embedding"]
        distance = jnp.linalg.norm(source - target) / jnp.linalg.norm(source)
        return {"loss": loss, "finite": jnp.isfinite(loss), "distance": distance, **uses}

    def sums(self, params: PyTree, batches: jax.Array, weight: jax.Array) -> jax.Array:
        """Return by bucket of the target the number of targets and their total loss in nats, `[2, buckets]`.

        batches: `[batches, rows, context]`. weight: of every row, 0 for rows that only fill up the last batch.
        """

        def of_batch(batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            tokens, weight = batch
            following, states = tokens[:, 1:], self.states(params, tokens)[:, :-1]
            each = jnp.repeat(weight, following.shape[1])
            head, target = _head(params), following.reshape(-1)
            _, predicted = predict_slots(states.reshape(-1, states.shape[-1]), head.table, target, each, head.bias)
            values = jnp.stack([each, each * predicted.cross_entropy])
            return values @ jax.nn.one_hot(jnp.asarray(self.bucket)[target], self.buckets)

        return jnp.asarray(jnp.sum(jax.lax.map(of_batch, (batches, weight)), axis=0))


def _head(params: PyTree) -> Head:
    return Head(params["head"]["embedding"], bias=params["head"].get("bias"))


def objective_of(settings: Settings, text: Text, arm: Arm) -> Objective:
    """Return the objective of an arm."""
    return Objective(build_model(settings, text.vocabulary, arm), text.bucket, len(text.bucket_names))


def in_batches(blocks: np.ndarray, rows: int, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return blocks in batches `[batches, rows, context]` with the weights of their rows: all, or `most` spread evenly."""
    chosen = spread(len(blocks), most)
    number = -(-len(chosen) // rows)
    weight = (np.arange(number * rows) < len(chosen)).astype(np.float32)
    return blocks[np.resize(chosen, number * rows)].reshape(number, rows, -1), weight.reshape(number, rows)


def recorders_of(settings: Settings, objective: Objective, text: Text) -> dict[str, training.Recorder]:
    """Return the recorders of training losses and gradients, and of validation losses."""
    assert settings.record_every is not None
    assert settings.validate_every is not None
    held_out = in_batches(text.validation, settings.batch_size, settings.validation_blocks)

    def train(params: PyTree, tokens: jax.Array, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
        return objective.record(params, tokens)

    def validate(params: PyTree, tokens: jax.Array, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
        count, nats = objective.sums(params, *map(jnp.asarray, held_out))
        return {"loss": jnp.sum(nats) / jnp.sum(count)}

    return {
        "train": training.Recorder(settings.record_every, train),
        "validation": training.Recorder(settings.validate_every, validate),
    }
