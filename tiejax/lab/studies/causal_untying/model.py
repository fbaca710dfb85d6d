"""The models of a run: their loss, optimizer, records and validation, and how they train."""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import models, training, tying
from tiejax.geometry.uses import use_gradients
from tiejax.lab.comparison.arms import Class
from tiejax.lab.comparison.training import Arrays
from tiejax.lab.runs.rates import Pair
from tiejax.lab.studies.causal_untying import plan, sizes
from tiejax.lab.studies.causal_untying.plan import Arm
from tiejax.lab.studies.causal_untying.settings import DECAY, WARM_UP, Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.models import counts, gpt2
from tiejax.pretraining.loss import Head, causal_loss, predict_slots
from tiejax.text.blocks import spread
from tiejax.text.planted_pairs import CHOICES, Choices, choices
from tiejax.training.optimizer import TableRecipe, leaves_at, make_optimizer, with_own_rates
from tiejax.training.placement import member_map, total
from tiejax.training.sources import ExampleFeed

PyTree = Any
BETAS, EPS = (0.9, 0.95), 1e-8
TIE = tying.Tie(*models.TABLE_PATHS)
UNDECAYED = (*models.TABLE_PATHS, "positions/embedding")


class Size(NamedTuple):
    """The size of a model; parameters: with tied tables counted once."""

    layers: int
    width: int
    feed_forward: int
    parameters: int


def size_of(settings: Settings, vocabulary: int, arm: Arm) -> Size:
    """Return the size of an arm's model; the wide and the deep tied one have about as many parameters as an untied one."""
    assert settings.context is not None
    hidden = sizes.FEED_FORWARD * settings.width
    size = vocabulary, settings.layers, settings.width, hidden, settings.context
    layers, width = settings.layers, settings.width
    if arm.factorised:
        return Size(layers, width, hidden, counts.gpt2_factorised(*size, width // 2))
    if not (arm.wide or arm.deep):
        return Size(layers, width, hidden, counts.gpt2(*size, tied=arm.tied) + arm.bias * vocabulary)
    if arm.wide:
        width = sizes.wide_width(settings)
    else:
        layers += max(1, vocabulary * width // counts.transformer_layer(width, hidden))
    hidden = counts.feed_forward_for(counts.gpt2(*size, tied=False), vocabulary, layers, width, settings.context, tied=True)
    return Size(layers, width, hidden, counts.gpt2(vocabulary, layers, width, hidden, settings.context, tied=True))


def build_model(settings: Settings, vocabulary: int, arm: Arm) -> models.LanguageModel:
    """Return the model of an arm."""
    assert settings.context is not None
    shape = size_of(settings, vocabulary, arm)
    size = vocabulary, shape.layers, shape.width, settings.heads, shape.feed_forward, settings.context
    return gpt2.build(*size, head_bias=arm.bias, embed_width=settings.width // 2 if arm.factorised else None)


def schedule_of(steps: int, cosine: bool, horizon: Fraction = Fraction(1)) -> optax.Schedule:
    """Return the factor of the learning rate by step, at most 1.

    It rises linearly in the first 2 % of the steps, is constant until 80 % of them, and falls linearly to 0 at the last; or,
    with a cosine, falls from its maximum to 0 as 1/2 (1 + cos(pi x)). horizon: the end of a shorter or longer run, as a
    fraction of the steps; it begins as the run does.
    """
    rise = max(1, round(WARM_UP * steps))
    steps = round(steps * horizon)
    fall = steps - round(DECAY * steps)

    def factor(step: jax.Array) -> jax.Array:
        warm = jnp.minimum(1.0, (step + 1) / rise)
        if cosine:
            past = jnp.clip((step - rise) / (steps - rise), 0, 1)
            return warm * 0.5 * (1 + jnp.cos(math.pi * past))
        return jnp.minimum(warm, jnp.clip((steps - step) / (steps - fall), 0, 1))

    return factor


def optimizer_of(settings: Settings, steps: int, arm: Arm) -> optax.GradientTransformation:
    """Return AdamW with two learning rates in its state: the tables' and that of the rest; tables and vectors do not decay."""
    tables = TableRecipe(UNDECAYED, weight_decay=0.0)
    adamw = make_optimizer("adamw", 1.0, settings.weight_decay, BETAS, EPS, "leaf", "matrices", tables)
    new = [getattr(TIE, arm.change.new)]

    def make(rate: jax.Array, of_tables: jax.Array) -> optax.GradientTransformation:
        """Return AdamW whose updates, at a rate of 1, are multiplied by the rates of their leaves."""

        def scaled(updates: PyTree, params: PyTree) -> PyTree:
            tables, changed = leaves_at(updates, models.TABLE_PATHS), leaves_at(updates, new)
            rates = jax.tree.map(lambda table: of_tables if table else rate, tables)
            rates = jax.tree.map(lambda rate, change: rate * arm.change.rate if change else rate, rates, changed)
            return jax.tree.map(operator.mul, rates, updates)

        return optax.chain(adamw, optax.stateless(scaled))

    return with_own_rates(make, 2, schedule_of(steps, arm.cosine, arm.horizon))


def ties_of(arm: Arm) -> list[tying.Tie]:
    """Return the tie between the two tables of an arm, with the weights of its uses; none between tables of two widths."""
    if arm.factorised:
        return []
    return [TIE if arm.weights == (1.0, 1.0) else dataclasses.replace(TIE, gradient=arm.weights)]


NO_PAIRS = np.zeros((0, 2), int)


class HeldOut(NamedTuple):
    """Held-out blocks in batches.

    tokens: `[batches, rows, context]`. weight: of every row, 0 for rows that only fill up the last batch. choices: the choices
    of planted text, each `[batches, rows, context]`; None without planted symbols.
    """

    tokens: Any
    weight: Any
    choices: Any = None


class Objective(NamedTuple):
    """The loss of a model on blocks of tokens `[rows, context]`, with what is recorded of it.

    bucket: the bucket of every token, out of `buckets`. pairs: the pairs of tokens whose distances are recorded, `[pairs, 2]`.
    devices: number of devices that share the rows of a step; each returns its share of the mean loss.
    """

    model: models.LanguageModel
    bucket: np.ndarray
    buckets: int
    pairs: np.ndarray = NO_PAIRS
    devices: int = 1

    def init(self, key: jax.Array) -> PyTree:
        """Return initial parameters, with both tables."""
        return self.model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    def states(self, params: PyTree, tokens: jax.Array) -> jax.Array:
        """Return the encoded states, `[rows, context, width]`."""
        return jnp.asarray(self.model.apply({"params": params}, tokens, method="encode"))

    def mean(self, params: PyTree, tokens: jax.Array) -> jax.Array:
        """Return the mean loss in nats a token."""
        across = total if self.devices > 1 else lambda number: number
        return causal_loss(self.states(params, tokens), _head(params), tokens, jnp.ones(len(tokens)), None, across)

    def loss(self, params: PyTree, tokens: jax.Array, key: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the mean loss as `training.Ensemble` takes it; the key is not used, for want of dropout."""
        return self.mean(params, tokens), {}

    def record(self, params: PyTree, tokens: jax.Array) -> dict[str, jax.Array]:
        """Return the loss on a batch, norms, ratio and cosine of the gradients of the two tables, and their distance.

        distance: |E_in - E_out| / |E_in|, with Frobenius norms. pair_input, pair_output: distance of the two rows of every
        pair in each table, `[pairs]`, if there are pairs. Of tables of different widths, only the loss.
        """
        loss, grads = jax.value_and_grad(self.mean)(params, tokens)
        source, target = params["embed"]["embedding"], params["head"]["embedding"]
        if source.shape != target.shape:
            return {"loss": loss, "finite": jnp.isfinite(loss)}
        uses = use_gradients(grads["embed"]["embedding"], grads["head"]["embedding"], self.bucket, self.buckets)
        distance = jnp.linalg.norm(source - target) / jnp.linalg.norm(source)
        first, second = self.pairs.T
        tables = {"pair_input": source, "pair_output": target} if len(self.pairs) else {}
        pairs = {name: jnp.linalg.norm(table[first] - table[second], axis=1) for name, table in tables.items()}
        return {"loss": loss, "finite": jnp.isfinite(loss), "distance": distance, **uses, **pairs}

    def sums(self, params: PyTree, held_out: HeldOut) -> dict[str, jax.Array]:
        """Return sums over held-out targets: by bucket of the target `count` and `nats`, the total loss, `[buckets]`.

        With planted symbols also by kind of choice `choices`, their number, and `excess`, `[kinds]`: the total divergence
        KL(p || q) in nats of the probabilities q that the model gives to the two symbols, of which there is one, from the known
        ones p. It is the loss of the choice less the least possible one, in expectation over the choice.
        """

        def of_batch(batch: HeldOut) -> dict[str, jax.Array]:
            following, states = batch.tokens[:, 1:], self.states(params, batch.tokens)[:, :-1]
            each = jnp.repeat(batch.weight, following.shape[1])
            head, target = _head(params), following.reshape(-1)
            _, predicted = predict_slots(states.reshape(-1, states.shape[-1]), head.table, target, each, head.bias)
            in_bucket = jax.nn.one_hot(jnp.asarray(self.bucket)[target], self.buckets)
            found = {"count": each @ in_bucket, "nats": (each * predicted.cross_entropy) @ in_bucket}
            if batch.choices is None:
                return found
            made = jax.tree.map(lambda values: values[:, 1:].reshape(-1), batch.choices)
            excess = each * _excess(head, states.reshape(len(target), -1), made)
            of_kind = jax.nn.one_hot(made.kind, len(CHOICES))  # all 0 where there is no choice
            return found | {"choices": each @ of_kind, "excess": excess @ of_kind}

        return jax.tree.map(lambda values: jnp.sum(values, axis=0), jax.lax.map(of_batch, held_out))


def _excess(head: Head, states: jax.Array, made: Any) -> jax.Array:
    """Return KL(p || q) of the two symbols of every choice, given that it is one of them, `[places]`."""
    bias = 0.0 if head.bias is None else head.bias[made.second] - head.bias[made.first]
    logit = jnp.sum(states * (head.table[made.second] - head.table[made.first]), axis=1) + bias
    p = made.probability
    entropy = -jax.scipy.special.xlogy(p, p) - jax.scipy.special.xlogy(1 - p, 1 - p)
    return -p * jax.nn.log_sigmoid(logit) - (1 - p) * jax.nn.log_sigmoid(-logit) - entropy


def _head(params: PyTree) -> Head:
    return Head(params["head"]["embedding"], bias=params["head"].get("bias"))


def held_out(text: Text, rows: int, most: int | None = None) -> HeldOut:
    """Return the validation blocks in batches: all, or `most` spread evenly, with the choices of planted text."""
    blocks, made = text.validation, None
    if text.planting is not None and text.ends is not None:
        made = Choices(*(values.astype(np.float32 if values.dtype == float else np.int32)
                         for values in choices(text.planting, blocks, text.ends)))  # fmt: skip
    chosen = spread(len(blocks), most)
    number = -(-len(chosen) // rows)
    weight = (np.arange(number * rows) < len(chosen)).astype(np.float32)

    def batches(values: np.ndarray) -> np.ndarray:
        return values[np.resize(chosen, number * rows)].reshape(number, rows, -1)

    return HeldOut(batches(blocks), weight.reshape(number, rows), jax.tree.map(batches, made))


def recorders_of(settings: Settings, objective: Objective, text: Text) -> dict[str, training.Recorder]:
    """Return the recorders of training losses and gradients, and of validation losses."""
    assert settings.record_every is not None
    assert settings.validate_every is not None
    held = held_out(text, settings.batch_size, settings.validation_blocks)

    def train(params: PyTree, tokens: jax.Array, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
        return objective.record(params, tokens)

    def validate(params: PyTree, tokens: jax.Array, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
        sums = objective.sums(params, jax.tree.map(jnp.asarray, held))
        planted = {"excess": sums["excess"] / jnp.maximum(sums["choices"], 1)} if "excess" in sums else {}
        return {"loss": jnp.sum(sums["nats"]) / jnp.sum(sums["count"]), **planted}

    return {
        "train": training.Recorder(settings.record_every, train),
        "validation": training.Recorder(settings.validate_every, validate),
    }


class Recipe(NamedTuple):
    """The models of a run (see `lab.comparison.training.Trainer`); devices: the number that train one model together."""

    settings: Settings
    text: Text
    devices: int = 1

    def ensemble(self, arm: Arm, first: int, last: int, steps: int) -> training.Ensemble:
        """Return the ensemble that trains an arm for the steps first, ..., last - 1 of a run, which it counts from 0."""
        objective = self.objective(arm)
        return training.Ensemble(
            init=objective.init,
            sample=lambda seed_key, step, tokens: tokens,
            loss=objective.loss,
            optimizer=optimizer_of(self.settings, steps, arm),
            ties=ties_of(arm),
            arm_ties=np.array([[arm.tied] * len(ties_of(arm))], bool),
            steps=last - first,
            first_step=first,
            recorders=recorders_of(self.settings, objective, self.text),
            max_norm=self.settings.clip,
            source=ExampleFeed(self.text.train, self.settings.batch_size, first),
            members=training.Unrolled() if jax.default_backend() == "cpu" else training.Vmapped(),
            precision=self.settings.matmul_precision,
            devices=self.devices,
        )

    def objective(self, arm: Arm) -> Objective:
        """Return the objective of an arm."""
        text = self.text
        buckets = text.bucket, len(text.bucket_names)
        return Objective(build_model(self.settings, text.vocabulary, arm), *buckets, text.of_pairs[1], self.devices)

    def with_rates(self, opt_state: PyTree, rates: Sequence[Pair]) -> PyTree:
        """Return the optimizer state of members `[seed, 1, ...]` with their learning rates and factors of the tables'."""
        return opt_state._replace(rates=jnp.asarray([[[rate, rate * factor]] for rate, factor in rates], jnp.float32))

    def judge(self, arm: Arm) -> Callable[[PyTree], Arrays]:
        """Return params -> sums of the final validation by bucket or kind of choice, `[seed, ...]` (see `Objective.sums`)."""
        batches = held_out(self.text, self.settings.batch_size, self.settings.final_blocks)
        mapped = member_map(self.objective(arm).sums)
        return lambda params: {name: values[:, 0] for name, values in mapped(params, batches).items()}

    def final_loss(self, judged: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the final validation loss `[seed]`, in nats a token."""
        return np.asarray(judged["nats"].sum(-1) / judged["count"].sum(-1))


def tuning_arm(kind: Class) -> Arm:
    """Return the arm whose models choose the learning rate of a class of arms: those of the first claim."""
    return Arm(plan.TIED, True) if kind == "tied" else Arm(plan.NEVER_INDEPENDENT, False, equal=False)
