"""Closed-form memory and disk needs against the shapes of the ensemble."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tiejax import training
from tiejax.lab.settings import sizes as shared
from tiejax.lab.settings.sizes import FLOAT, records_of
from tiejax.lab.studies.exor import sizes
from tiejax.lab.studies.exor.ensemble import CPU_OPTIONS, build_ensemble, named_arrays, seeds_at_once
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.exor.trajectories import trajectories
from tiejax.lab.studies.untying import settings as untying_settings
from tiejax.lab.studies.untying import study as untying
from tiejax.training import seed_keys


def bytes_of(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if leaf.ndim)


def number_of(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


CASES = [
    {},
    {"layers": 3, "width": 6, "heads": 2, "feed_forward": 10, "zero": [0.2, 0.3, 0.5], "bits": 4},
    {"model": "lstm", "bits": 3, "bidirectional": False, "width": 5},
    {"model": "lstm", "layers": 3, "bits": 3},
    {"model": "mixer", "layers": 2, "bits": 5, "engine": "plain"},
    {"doses": [0.5, 0.9], "bits": 3, "seeds": 2},
    {"bits": 3, "output_bias": True, "table_decay": 0.0, "table_rate": 2.0, "shared_second_moment": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", CASES, ids=str)
def test_parameters_and_state(fields):
    settings = Settings(**fields).resolved()
    ensemble = build_ensemble(settings)
    params = jax.eval_shape(ensemble.init, jax.random.key(0))
    assert sizes.parameters(settings) == number_of(params)
    seeds = [seed for _, seed in settings.seeds_by_condition]
    assert sizes.need(settings).state == bytes_of_state(ensemble, seeds)


def bytes_of_state(ensemble, seeds):
    """Return the bytes of parameters and moments of all members, without step counts (one number per member)."""
    state = jax.eval_shape(lambda: ensemble.start(seeds)).state
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim > 2)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [CASES[1], {"model": "mixer", "bits": 3}], ids=str)
def test_records(fields):
    settings = Settings(**fields, seeds=1, steps=1200, record_every=500, exact_every=1000).resolved()
    ensemble = build_ensemble(settings)
    state = jax.eval_shape(lambda: ensemble.start([0])).state

    def of(name):
        measured = jax.eval_shape(lambda state: ensemble.measure(name, seed_keys([0]), state, jnp.int32(0)), state)
        return bytes_of(measured) // 2  # tied and untied

    assert (sizes.bytes_of_record(settings), sizes.bytes_of_exact_record(settings)) == (of("record"), of("exact"))
    # After 0, 500, 1,000 and 1,200 steps; after 0, 1,000 and 1,200.
    assert sizes.record_bytes(settings) == 4 * of("record") + 3 * of("exact")
    assert (records_of(1200, 500), records_of(1000, 500)) == (4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["main", "dh"])
def test_disk_needs_of_records(variant):
    """Against the bytes of records and trajectories of four members; `dh` has one pair fewer."""
    small = {"seeds": 2, "bits": 3, "variant": variant, "steps": 5, "record_every": 2, "exact_every": 4}
    settings = Settings(**small, records_on="disk").resolved()
    records = training.train(build_ensemble(settings), [0, 1]).records
    metrics = named_arrays(records, settings)
    runs = trajectories(metrics, settings.tasks[0], 2)
    trajectory_bytes = number_of_bytes([runs.distance, runs.relative, runs.exact])
    in_memory = sizes.need(dataclasses.replace(settings, records_on="memory"))
    on_disk = sizes.need(settings)
    assert sizes.bytes_at_the_end(settings) * 4 == trajectory_bytes
    largest = max(array.nbytes for array in metrics.values())
    assert on_disk.disk == 2 * in_memory.records + max(largest, 2 * trajectory_bytes)
    assert on_disk.records == 2 * number_of_bytes(runs.distance["input"]["even_odd"])
    assert in_memory.disk == 0
    assert in_memory.records == number_of_bytes(list(metrics.values())) - number_of_bytes(outside(metrics))
    assert on_disk._replace(records=0, disk=0) == in_memory._replace(records=0)


def test_records_on_disk_require_checkpoints():
    ensemble = build_ensemble(Settings(seeds=1, bits=3, steps=5).resolved())
    with pytest.raises(ValueError, match=r"^records_on_disk: requires checkpoints"):
        training.train(ensemble, [0], records_on_disk=True)


def number_of_bytes(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def outside(metrics):
    """Return the arrays without a member axis: names, indices and steps."""
    return [metrics[name] for name in ("arms", "seeds", "splits", "pairs", "step", "exact_step")]


def test_large_records_are_stored_on_disk(monkeypatch):
    settings = Settings(seeds=10).resolved()
    records = sizes.need(settings).records
    for memory, on_disk in ((10 * records, False), (10 * records - 1, True), (None, False)):
        monkeypatch.setattr(shared, "machine_memory", lambda memory=memory: memory)
        assert (sizes.need(settings).disk > 0) is on_disk
        assert sizes.need(dataclasses.replace(settings, records_on="memory")).disk == 0
        assert sizes.need(dataclasses.replace(settings, records_on="disk")).disk > 2 * records


@pytest.mark.parametrize(("seeds", "expected"), [(1, 64), (32, 64), (10**4, 38), (10**6, 2)])
def test_records_per_chunk_fit_in_the_buffer(seeds, expected):
    settings = Settings(seeds=seeds).resolved()
    assert build_ensemble(settings).records_per_chunk == expected
    bytes_per_member = sizes.bytes_of_record(settings) + sizes.bytes_of_exact_record(settings)
    assert expected == 2 or expected * 2 * seeds * bytes_per_member <= sizes.BUFFER
    assert build_ensemble(settings).longest_chunk(1) > 1


@pytest.mark.parametrize("policies", [["copy"], ["copy", "split", "zero"]])
def test_arms_of_an_untying_run_are_counted(policies):
    fields = {"bits": 3, "steps": 40, "untie_at": [0.25, 0.5], "policies": policies, "seeds": 2}
    settings = untying_settings.Settings(**fields).resolved()
    needed = sizes.need(settings)
    assert needed.state == bytes_of_state(untying.build_ensemble(settings), [0, 1])
    assert needed.training == FLOAT * sizes.parameters(settings) * 2 * len(settings.untie_arms.step)


@pytest.mark.parametrize(
    ("fields", "leaf_bytes", "seeds"),
    [
        ({}, 114 * 7 * 4 * 4, 16),  # [multisets, symbols, width] of one layer, in float32: as many as there may be
        ({"engine": "plain"}, 114 * 8 * 4 * 4, 4),
        ({"size": "medium"}, 2 * 114 * 7 * 32 * 4, 2),
        ({"model": "lstm"}, 2 * 114 * 8 * 2 * 4 * 8 * 4, 1),  # two directions, four gates
        ({"model": "lstm", "bidirectional": False}, 2 * 114 * 8 * 4 * 8 * 4, 2),
    ],
    ids=str,
)
def test_seeds_at_once_depend_on_activations(fields, leaf_bytes, seeds):
    settings = Settings(**fields).resolved()
    assert sizes.bytes_of_layers(settings) == leaf_bytes
    assert seeds_at_once(settings, arms=2) == seeds
    assert seeds_at_once(settings, arms=99) == 1


def test_only_transformers_set_xla_options():
    options = {
        model: build_ensemble(Settings(model=model).resolved()).xla_options["cpu"] for model in ("transformer", "lstm", "mixer")
    }
    assert options == {"transformer": CPU_OPTIONS["transformer"], "lstm": {}, "mixer": {}}
    assert untying.build_ensemble(untying_settings.Settings().resolved()).xla_options["cpu"] == options["transformer"]
