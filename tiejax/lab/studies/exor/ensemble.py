"""The ensemble of an EXor run: tied and untied members of every seed, and their recorders."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training, tying
from tiejax.geometry.distances import symbol_pairs
from tiejax.lab.studies.exor import sizes
from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, count_contexts
from tiejax.lab.studies.exor.engines import Engine, FastEngine, PlainEngine
from tiejax.lab.studies.exor.multisets import Sampler, Visits
from tiejax.lab.studies.exor.recorders import Measures, exact_recorder
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.exor.task import SPLITS, split
from tiejax.models import LanguageModel
from tiejax.models.multiset import product_by_sums
from tiejax.statistics.arms import ARMS
from tiejax.training import DrawAhead, Ensemble, Recorder, SeedKey
from tiejax.training.optimizer import TableRecipe
from tiejax.training.records import Records

# Maximum number of members that a core trains at a time, by engine, provided that their activations fit in its cache. Chosen
# from measurements (`bench.py exor`).
MOST_MEMBERS = {"fast": 32, "plain": 8}
BYTES_IN_CACHE = 2**20
# XLA options on a CPU, by architecture. Sums over few rows, as in attention, are ten times slower in XLA's library than in the
# loops that it generates. The mixer is slower without the library (`bench.py exor --model`).
CPU_OPTIONS = {"transformer": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}}
Platform = Literal["cpu", "gpu", "tpu"]
# Limits on the number of steps whose batches are drawn at once, and on the bytes of the drawn outcomes.
MOST_STEPS_AHEAD = 500
MOST_BYTES_AHEAD = 2**28
ENCODERS = {"transformer": models.Transformer, "lstm": models.BidirectionalLSTM, "mixer": models.Mixer}


def build_model(settings: Settings, platform: Platform = "cpu") -> LanguageModel:
    """Return the masked language model of resolved settings; platform: as in `build_ensemble`."""
    assert settings.width is not None
    fields = {name: value for name, value in settings.model_settings.items() if name not in ("architecture", "size")}
    if settings.model == "mixer":
        del fields["width"]  # the mixer takes it from its input
    if settings.model == "lstm":
        fields["unrolled"] = platform != "cpu"
    encoder = ENCODERS[settings.model](**fields)
    return LanguageModel(
        settings.tasks[0].vocabulary,
        settings.width,
        encoder,
        embedding_std=settings.table_std,
        head_bias=settings.output_bias,
    )


def build_engine(settings: Settings, platform: Platform = "cpu") -> Engine:
    """Return the engine of resolved settings; platform: as in `build_ensemble`."""
    model = build_model(settings, platform)
    outcomes = settings.tasks[0].asked if settings.softmax == "asked" else None
    if settings.engine == "fast":
        return FastEngine(model, settings.tasks, product_by_sums if platform == "gpu" else jnp.matmul, outcomes)
    return PlainEngine(model, settings.tasks, settings.dropout, outcomes)


def make_optimizer(settings: Settings, counts: Literal["all", "leaf"] = "all") -> Any:
    """Return the optimizer of resolved settings; counts: as in `training.make_optimizer`."""
    assert settings.learning_rate is not None
    rates = settings.learning_rate, settings.minimum_learning_rate
    schedule = training.make_schedule(settings.schedule, *rates, settings.half_period)
    tables = TableRecipe(models.TABLE_PATHS, settings.table_decay, settings.table_rate, settings.shared_second_moment)
    return training.make_optimizer(
        settings.optimizer, schedule, settings.weight_decay, eps=settings.eps, counts=counts, tables=tables
    )


def steps_ahead(settings: Settings) -> int:
    """Return the number of steps whose batches are drawn at once.

    A step takes an int32 per string of the training split or, with a batch size, of two shuffled epochs. The estimate counts
    the seeds of all devices.
    """
    strings = len(split(settings.bits)["train"])
    visits_per_seed = strings if settings.batch_size is None else 2 * strings
    bytes_per_step = 4 * visits_per_seed * settings.number_of_seeds * len(settings.tasks)
    return max(1, min(settings.record_every, MOST_STEPS_AHEAD, MOST_BYTES_AHEAD // bytes_per_step))


def build_ensemble(settings: Settings, platform: Platform | None = None) -> Ensemble:
    """Return the untied and tied members of resolved settings with their recorders.

    platform: the platform to compute on (default: JAX's default backend). On an accelerator a step uses as few kernels as
    possible, since launching one takes longer than computing it; `bench.py targets` counts them.
    """
    assert settings.steps is not None
    assert settings.exact_every is not None
    platform = platform or cast(Platform, jax.default_backend())
    engine, task, strings = build_engine(settings), settings.tasks[0], split(settings.bits)
    ties = [tying.Tie(*models.TABLE_PATHS, gradient=settings.tie_gradient)]
    sampler = Sampler(settings.tasks, strings["train"], settings.batch_size, settings.ordered)

    def init(key: jax.Array) -> Any:
        tokens, position = jnp.zeros((1, task.length), jnp.int32), jnp.zeros(1, jnp.int32)
        params = engine.model.init(key, tokens, position)["params"]
        return tying.copy_to_targets(params, params, ties, jnp.array([True])) if settings.equal_tables else params

    def draw(seed_key: SeedKey, step: jax.Array) -> Visits:
        keys = training.stream(seed_key.key, "data"), training.stream(seed_key.key, "order")
        return sampler.visits(*keys, step, seed_key.condition)

    def sample(seed_key: SeedKey, step: jax.Array, drawn: jax.Array | None) -> Any:
        return engine.batch(draw(seed_key, step) if drawn is None else drawn)

    measures = Measures(engine, dataclasses.replace(sampler, batch_size=None), strings["validation"])
    recorders = {"record": Recorder(settings.record_every, measures)}
    if count_contexts(task, settings.ordered) <= MAX_CONTEXTS:
        recorders["exact"] = Recorder(settings.exact_every, exact_recorder(engine, settings.ordered))
    draws_ahead = platform != "cpu" and sampler.tabled
    return Ensemble(
        init=init,
        sample=sample,
        loss=build_engine(settings, platform).loss,
        optimizer=make_optimizer(settings),
        ties=ties,
        arm_ties=np.array([[False], [True]]),
        steps=settings.steps,
        recorders=recorders,
        max_norm=settings.max_norm,
        precision=settings.matmul_precision,
        members=training.Vmapped(seeds_at_once(settings, len(settings.arm_policies)) if platform == "cpu" else None),
        xla_options={"cpu": CPU_OPTIONS.get(settings.model, {})},
        source=DrawAhead(draw, steps_ahead(settings)) if draws_ahead else None,
        records_per_chunk=sizes.records_per_chunk(settings),
    )


def conditions_and_seeds(settings: Settings) -> tuple[Sequence[int], Sequence[int]]:
    """Return condition and seed of every pair of arms, as two lists."""
    conditions, seeds = zip(*settings.seeds_by_condition, strict=True)
    return conditions, seeds


def seeds_at_once(settings: Settings, arms: int) -> int | None:
    """Return the number of seeds, of `arms` arms each, that a device trains at a time: on a CPU as many as fit in its cache."""
    assert settings.engine != "auto"  # resolved
    if jax.default_backend() != "cpu":
        return None
    return max(1, min(MOST_MEMBERS[settings.engine], BYTES_IN_CACHE // sizes.bytes_of_layers(settings)) // arms)


def by_split(records: Records) -> Records:
    """Return records whose exact risks `[record, seed, arm, split]` are fields of their own, such as `cross_entropy/train`."""

    def of_field(field: str, values: np.ndarray) -> dict[str, np.ndarray]:
        if field not in ("accuracy", "cross_entropy"):
            return {field: values}
        return {f"{field}/{name}": values[..., place] for place, name in enumerate(SPLITS)}

    return {
        recorder: {name: part for field in fields.items() for name, part in of_field(*field).items()}
        for recorder, fields in records.items()
    }


def named_arrays(records: Mapping[str, Mapping[str, np.ndarray]], settings: Settings) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[arm, seed, record, ...]`, exact ones with the prefix `exact_`."""
    arrays = {
        "arms": np.array(ARMS),
        "seeds": np.array([seed for _, seed in settings.seeds_by_condition]),
        "splits": np.array(SPLITS),
        "pairs": np.array(symbol_pairs(settings.tasks[0].vocabulary)),
    }
    if settings.doses is not None:
        arrays["dose"] = np.array([settings.doses[condition] for condition, _ in settings.seeds_by_condition])
    return arrays | training.by_arm(records, {"record": "", "exact": "exact_"})
