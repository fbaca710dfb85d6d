"""The members of an EXor run: tied and untied models of every seed, and what is recorded of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training, tying
from tiejax.geometry.distances import pairwise_distances, symbol_pairs
from tiejax.geometry.uses import use_gradients
from tiejax.models import multiset
from tiejax.statistics.arms import ARMS
from tiejax.studies.exor import batches as exor_batches
from tiejax.studies.exor import multisets as exor_multisets
from tiejax.studies.exor import task as exor
from tiejax.studies.exor.risk import Expectations, exact_risk
from tiejax.studies.exor.settings import Settings
from tiejax.training import Ensemble

TIED = ("embed/embedding", "head/embedding")


def build_model(settings: Settings) -> Any:
    """Return the masked LM of a resolved configuration."""

    assert settings.width is not None
    given = {name: value for name, value in settings.model_settings.items() if name not in ("architecture", "size")}
    if settings.model == "mixer":
        del given["width"]  # the mixer takes it from its input
    encoder = {"transformer": models.Transformer, "lstm": models.BidirectionalLSTM, "mixer": models.Mixer}[settings.model]
    return models.LanguageModel(settings.tasks[0].vocabulary, settings.width, encoder(**given))


def make_optimizer(settings: Settings, counts: Literal["all", "leaf"] = "all") -> Any:
    """Return the optimizer of a resolved configuration; counts: as `training.make_optimizer` says."""

    assert settings.learning_rate is not None
    rates = settings.learning_rate, settings.minimum_learning_rate
    schedule = training.make_schedule(settings.schedule, *rates, settings.half_period)
    return training.make_optimizer(settings.optimizer, schedule, settings.weight_decay, eps=settings.eps, counts=counts)


def build_ensemble(settings: Settings) -> "Ensemble":
    """Return tied and untied members of a resolved configuration, with what is recorded of them.

    Both engines of a model without positions see the same batches: `plain` as sequences, `fast` as multisets.
    """

    assert settings.steps is not None
    assert settings.exact_every is not None
    tasks, model = settings.tasks, build_model(settings)
    task, splits = tasks[0], exor.split(tasks[0].bits)
    fast = settings.engine == "fast"

    def init(key: jax.Array) -> Any:
        return model.init(key, jnp.zeros((1, task.length), jnp.int32), jnp.zeros(1, jnp.int32))["params"]

    def of_condition(by_condition: Sequence[Any], seed_key: Any) -> Any:
        if len(by_condition) == 1:  # not one copy a seed
            return by_condition[0]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[seed_key.condition], *by_condition)

    def visits(batch_size: int | None) -> Any:
        """Return (data key, order key, step, condition) -> batch, in the form that the engine takes."""
        if settings.ordered:
            sampler = exor_batches.Sampler(task, splits["train"], batch_size)
            return lambda data_key, order_key, step, condition: sampler.batch(data_key, order_key, step)
        multisets = exor_multisets.MultisetSampler(tasks, splits["train"], batch_size)
        return multisets.multisets if fast else multisets.batch

    draw_train, draw_redrawn = visits(settings.batch_size), visits(None)

    def sample(seed_key: Any, step: jax.Array, fed: None) -> Any:
        keys = training.stream(seed_key.key, "data"), training.stream(seed_key.key, "order")
        return draw_train(*keys, step, seed_key.condition)

    def logits(params: Any, batch: Any, key: jax.Array | None) -> jax.Array:
        drops = key is not None and settings.dropout > 0
        rngs = {"dropout": key} if drops else None
        return model.apply({"params": params}, batch.tokens, batch.position, deterministic=not drops, rngs=rngs)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        if fast:
            return training.asked_loss(multiset.logits(model, params, batch.counts, task.mask), batch.asked)
        return training.masked_lm_loss(logits, params, batch, key)

    def measure(params: Any, batch: Any, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
        data_key = training.stream(seed_key.key, "validation")
        validation = {"redrawn": draw_redrawn(data_key, seed_key.key, step, seed_key.condition)}
        if len(splits["validation"]):
            frozen = of_condition([exor_batches.frozen(each, splits["validation"]) for each in tasks], seed_key)
            validation["frozen"] = exor_multisets.count(frozen, task.vocabulary) if fast else frozen
        sampled = {f"validation_{name}": loss(params, visit, None)[1] for name, visit in validation.items()}
        sampled["train"] = loss(params, batch, jax.random.fold_in(training.stream(seed_key.key, "dropout"), step))[1]
        found = {
            "distance_input": pairwise_distances(params["embed"]["embedding"]),
            "distance_output": pairwise_distances(params["head"]["embedding"]),
            **{f"{name}_{metric}": value for name, metrics in sampled.items() for metric, value in metrics.items()},
        }
        finite = {"finite": training.all_finite((params, found))}
        # Of the tied loss these sum to the table's gradient; each symbol is a bucket.
        own = jax.grad(lambda params: loss(params, batch, None)[0])(params)
        symbols = jnp.arange(task.vocabulary)
        uses = use_gradients(own["embed"]["embedding"], own["head"]["embedding"], symbols, task.vocabulary)
        return found | finite | {f"use_{name}": values for name, values in uses.items()}

    recorders = {"record": training.Recorder(settings.record_every, measure)}
    if exor.count_contexts(task, settings.ordered) <= exor.MAX_CONTEXTS:
        known = [exor.contexts(each, settings.ordered) for each in tasks]
        asking = [exor.asking_pairs(each, contexts) for each, contexts in zip(tasks, known, strict=True)]
        expected = [
            Expectations.of(contexts.target, contexts.weight, {name: share for name, (_, share) in own.items()})
            for contexts, own in zip(known, asking, strict=True)
        ]
        pairs = {name: symbols for name, (symbols, _) in asking[0].items()}
        # Pairs are measured in the first task's order, and their log ratios told from the likelier symbol to the other.
        turned = [{name: 1.0 if own[name][0] == pairs[name] else -1.0 for name in pairs} for own in asking]
        counts = exor_multisets.occurrences(known[0].tokens, task.vocabulary).T
        risk = exact_risk(
            encode=(
                (lambda params, rows: multiset.encode(model, params, rows.T, task.mask).T)
                if fast
                else (lambda params, rows: model.apply({"params": params}, *rows, method="encode"))
            ),
            output_table=lambda params: params["head"]["embedding"],
            inputs=counts if fast else (known[0].tokens, known[0].position),
            pairs=pairs,
            block=1024 if fast else 256,
        )

        def measure_risk(params: Any, batch: Any, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
            found = risk(params, of_condition(expected, seed_key))
            sign = of_condition(turned, seed_key)
            return found | {f"log_ratio_{name}": sign[name] * found[f"log_ratio_{name}"] for name in pairs}

        recorders["exact"] = training.Recorder(settings.exact_every, measure_risk)

    return training.Ensemble(
        init=init,
        sample=sample,
        loss=loss,
        optimizer=make_optimizer(settings),
        ties=[tying.Tie(*TIED)],
        arm_ties=np.array([[False], [True]]),
        steps=settings.steps,
        recorders=recorders,
        max_norm=settings.max_norm,
    )


def named_arrays(records: Mapping[str, Mapping[str, np.ndarray]], settings: Settings) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[arm, seed, record, ...]`, exact ones under `exact_`."""

    arrays = {
        "arms": np.array(ARMS),
        "seeds": np.array([seed for _, seed in settings.members]),
        "splits": np.array(exor.SPLITS),
        "pairs": np.array(symbol_pairs(settings.tasks[0].vocabulary)),
    }
    if settings.doses is not None:
        arrays["dose"] = np.array([settings.doses[condition] for condition, _ in settings.members])
    return arrays | training.by_arm(records, {"record": "", "exact": "exact_"})
