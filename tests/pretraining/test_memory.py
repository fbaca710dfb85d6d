"""Memory of pre-training per device: against counts by hand, between settings, and against the compiler."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import optax
import pytest
from processes import end, start_python

from tiejax.models import counts
from tiejax.models.bert import count_parameters
from tiejax.models.shapes import REMBERT, Shape
from tiejax.pretraining.memory import Pretraining, largest_batch, plan_memory

SHAPE = Shape(32, 48, 64, 2, 4)
SMALL = Pretraining(SHAPE, 1000, 32, devices=2)


def halves(*shapes):
    """Bytes per device of leaves that are split over two devices."""
    return sum(4 * rows * columns // 2 for rows, columns in shapes)


def test_parameters_and_moments_by_hand():
    """Leaves of at least 4,096 numbers are split; AdamW has two moments of every leaf, and counts of steps."""
    split = halves((1000, 32), (1000, 48), *[(64, 192), (64, 64), (64, 256), (256, 64)] * SHAPE.layers)
    whole = 4 * (32 * 32 + 2 * 32 + 2 * 32 + 32 * 64 + 64)  # positions, token types, norm, map
    whole += 4 * SHAPE.layers * (192 + 64 + 256 + 64 + 4 * 64)  # biases and norms of the layers
    whole += 4 * (64 * 48 + 48 + 2 * 48 + 1000)  # the head
    plan = plan_memory(SMALL, 8)
    counts = 2 * 4  # of Adam and of the schedule
    assert plan.optimizer == 2 * (split + whole) + counts
    assert plan.parameters >= split + whole
    assert plan.output_table == "1,000 x 48, its rows split over 2 devices"


@pytest.mark.slow
def test_a_coupled_table_is_stored_once():
    coupled = dataclasses.replace(SMALL, shape=Shape(48, 48, 64, 2, 4, coupled=True))
    free = dataclasses.replace(SMALL, shape=Shape(48, 48, 64, 2, 4))
    once, twice = plan_memory(coupled, 8), plan_memory(free, 8)
    assert twice.optimizer - once.optimizer == 2 * halves((1000, 48))
    assert once.total < twice.total
    assert once.output_table.endswith("split over 2 devices, shared with the input table")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocabulary", "devices", "words"),
    [(1000, 4, "1,000 x 48, its rows split over 4 devices"), (1001, 4, "1,001 x 48, its columns split over 4 devices"),
     (1001, 5, "1,001 x 48, whole on every device"), (1000, 1, "1,000 x 48, whole on every device")],
)  # fmt: skip
def test_sharding_of_the_output_table(vocabulary, devices, words):
    assert plan_memory(dataclasses.replace(SMALL, vocabulary=vocabulary, devices=devices), 8).output_table == words


@pytest.mark.slow
def test_more_devices_take_less_memory_each():
    totals = [plan_memory(dataclasses.replace(SMALL, devices=devices), 64) for devices in (1, 2, 4)]
    for fewer, more in itertools.pairwise(totals):
        assert more.total < fewer.total
        assert more.activations < 0.6 * fewer.activations


@pytest.mark.slow
def test_rematerialisation_keeps_one_state_per_layer():
    """Every further layer adds its input; without rematerialisation it adds everything its derivative reads."""
    shapes = [dataclasses.replace(SHAPE, layers=layers) for layers in (8, 16)]
    rows, state = 64, 4 * 32 * 32 * 64  # bytes of the states of one device's rows

    def further(**how):
        few, many = (plan_memory(dataclasses.replace(SMALL, shape=shape, **how), rows).activations for shape in shapes)
        return (many - few) / 8

    assert further(rematerialise=True) == pytest.approx(state, rel=0.1)
    assert further() > 8 * state


def test_logits_of_one_chunk_at_a_time():
    """With eight times the slots, all logits would take 1 GB."""
    large = dataclasses.replace(SMALL, vocabulary=120_000, devices=1)
    few, many = (plan_memory(dataclasses.replace(large, slots=lambda rows, n=n: n), 64) for n in (256, 2048))
    assert many.total - few.total < 50e6


@pytest.mark.slow
def test_members_of_a_device_share_activations():
    """Four members are trained in turn; each has its own parameters and moments."""
    one, four = plan_memory(SMALL, 8), plan_memory(dataclasses.replace(SMALL, members=4), 8)
    assert four.optimizer >= 4 * one.optimizer
    assert four.activations < 4 * one.activations


@pytest.mark.slow
def test_another_optimizer_is_counted():
    plain = dataclasses.replace(SMALL, optimizer=optax.sgd(0.1))
    assert plan_memory(plain, 8).optimizer < 10
    momentum = dataclasses.replace(SMALL, optimizer=optax.sgd(0.1, momentum=0.9))
    assert 2 * plan_memory(momentum, 8).optimizer == plan_memory(SMALL, 8).optimizer - 2 * 4


@pytest.mark.slow
def test_half_precision_halves_activations_but_not_moments():
    half = plan_memory(dataclasses.replace(SMALL, dtype=jnp.bfloat16), 256)
    full = plan_memory(SMALL, 256)
    assert half.optimizer == full.optimizer
    assert half.activations < 0.75 * full.activations


@pytest.mark.slow
def test_largest_batch_is_the_largest_that_fits():
    memory = 30_000_000
    rows = largest_batch(SMALL, memory)
    assert rows % 2 == 0
    assert plan_memory(SMALL, rows).total <= memory < plan_memory(SMALL, rows + 2).total


def test_memory_too_small_for_one_row():
    with pytest.raises(ValueError, match=r"^memory: one row per device takes \d,\d{3},\d{3} bytes, got 100; use more devices$"):
        largest_batch(SMALL, 100)


def test_invalid_shape():
    with pytest.raises(ValueError, match="3 heads do not divide the width 64"):
        Pretraining(Shape(32, 48, 64, 2, 3), 1000, 32)


def test_plan_of_rembert_for_absent_devices():
    """Each of 64 devices has 1/64 of the parameters, except for the biases of tokens, which are replicated, and two moments."""
    plan = plan_memory(Pretraining(REMBERT, 250_300, 512, devices=64, rematerialise=True), 2048)
    parameters = count_parameters(REMBERT, 250_300)[0] - counts.pooler(REMBERT)
    assert plan.optimizer == pytest.approx(2 * 4 * ((parameters - 250_300) / 64 + 250_300), rel=0.001)
    assert jax.device_count() < 64


# Activations, parameters and logits all matter here. The rows are those of all devices of a member.
COMPILED = {
    "coupled": (Shape(128, 128, 128, 4, 4, coupled=True), {"vocabulary": 8000, "rows": 32, "length": 64, "slots": 320}),
    "large output": (Shape(32, 512, 128, 2, 4), {"vocabulary": 12_000, "rows": 16, "length": 64, "slots": 160}),
    "deep": (
        Shape(64, 128, 128, 16, 4),
        {"vocabulary": 4000, "rows": 32, "length": 128, "slots": 640, "rematerialise": True},
    ),
    "wide batch": (Shape(64, 64, 128, 3, 4), {"vocabulary": 3072, "rows": 128, "length": 64, "slots": 1280}),
}

# Prints the bytes per device that the compiler counts for the chunk of training steps, built as in the study, and the plan.
COMPILE = """
import json, sys
import jax
import numpy as np
from tiejax import training
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.pretraining.masked_lm import MaskedLM
from tiejax.pretraining.memory import Pretraining, plan_memory
from tiejax.text.masking import Masking
from tiejax.text.packing import TextFeed
from tiejax.text.twins import Twins
ids = np.random.default_rng(0).integers(5, 3000, 200_000).astype(np.uint16)
found = {}
for name, (shape, case) in json.loads(sys.argv[1]).items():
    shape, length, vocabulary = Shape(**shape), case["length"], case["vocabulary"]
    model = bert.build(shape, vocabulary, length, rematerialise=case.get("rematerialise", False))
    masking = Masking(Twins(vocabulary, (), (), ()), (0, 1, 2), 3, case["slots"] // jax.device_count())
    objective = MaskedLM(model, shape.coupled)
    ensemble = training.Ensemble(
        init=objective.init,
        sample=lambda seed_key, step, rows: masking.visit(rows.tokens, rows.segments, rows.row, seed_key.key),
        loss=objective.loss,
        optimizer=training.make_optimizer("adamw", training.constant(1e-3), 0.01),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        steps=100,
        recorders={"step": training.Recorder(100, lambda params, batch, seed_key, step: {"step": step})},
        max_norm=1.0,
        source=TextFeed(ids, np.arange(0, len(ids) + 1, 20), length, 0, case["rows"]),
        members=training.Scanned(),
        devices=jax.device_count(),
    )
    memory = training.compile_ensemble(ensemble, [0], ensemble.start([0])).executable.memory_analysis()
    sizes = (getattr(memory, f"{part}_size_in_bytes") for part in ("argument", "output", "temp"))
    slots = case["slots"] // jax.device_count()
    remat = case.get("rematerialise", False)
    setup = Pretraining(shape, vocabulary, length, jax.device_count(), slots=lambda here: slots, rematerialise=remat)
    found[name] = sum(sizes) - memory.alias_size_in_bytes, plan_memory(setup, case["rows"]).total
print("found", json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_plan_is_near_the_count_of_the_compiler(devices):
    """Within 16 %: largest where one table dominates, whose gathered copy and gradient are not whole at the same time."""
    names = COMPILED if devices > 1 else ["large output"]
    cases = {name: (dataclasses.asdict(COMPILED[name][0]), COMPILED[name][1]) for name in names}
    # As users compile: the tests' own flags change what is fused, and so what is stored.
    env = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    env["JAX_NUM_CPU_DEVICES"] = str(devices)
    ended = end(start_python("-c", COMPILE, json.dumps(cases), env=env))
    assert ended.status == 0, ended.err
    for name, (compiled, planned) in json.loads(ended.out.partition("found ")[2]).items():
        assert planned == pytest.approx(compiled, rel=0.16), name
