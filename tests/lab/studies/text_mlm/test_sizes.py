"""Closed-form memory estimates of the text study against the shapes of the ensemble."""

import math
import shlex

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec
from text_runs import arguments

from tiejax.lab.runs import resume
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import sizes as shared
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.text_mlm import sizes
from tiejax.lab.studies.text_mlm.ensemble import build_ensemble
from tiejax.lab.studies.text_mlm.settings import STUDY
from tiejax.lab.studies.text_mlm.text import buckets_of, pairs_of, prepare
from tiejax.text.packing import TextFeed
from tiejax.training import seed_keys
from tiejax.training.placement import DATA

CASES = [
    "--layers 2 --width 24 --feed_forward 10 --positions learned --layer_norm pre --head_bias true --table_rate 2",
    "--untie_at [.25,.5] --untie_policy split --seeds 3 --steps 40",
    "--equal_tables_arm true --seeds 3 --steps 40",
]


def bytes_of(tree, least_axes=0):
    """Return the bytes of the leaves with at least `least_axes` axes (step counts, one number per member, have fewer)."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if leaf.ndim >= least_axes)


@pytest.mark.slow
@pytest.mark.parametrize("line", CASES)
def test_state_records_and_batches(data, tmp_path, line):
    settings = resume.read(STUDY, arguments(data, "--out", tmp_path / "run", *shlex.split(line))).settings
    text, plan = prepare(settings, Console(quiet=True))
    ensemble = build_ensemble(settings, text, plan)
    vocabulary, pairs, buckets = text.twins.vocabulary, len(pairs_of(text)[0]), len(buckets_of(text)[0])
    decided = sizes.Decided(vocabulary, pairs, buckets, plan.steps, plan.rows, plan.mesh)
    params = jax.eval_shape(ensemble.init, jax.random.key(0))
    assert sizes.parameters(settings, vocabulary) == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))

    needed, state = sizes.need(settings, decided), jax.eval_shape(lambda: ensemble.start(settings.seed_list)).state
    assert needed.state == bytes_of(state, least_axes=3)
    windows = ensemble.source.open([(seed, 0) for seed in settings.seed_list], range(plan.mesh), plan.mesh, 0)
    rows = next(windows)
    held_out = settings.validation_batches * plan.rows * settings.max_length * 4
    assert needed.batches == rows.tokens.nbytes + rows.segments.nbytes + held_out

    fed = jax.tree.map(lambda leaf: jnp.asarray(leaf[:1, 0]), rows)
    one = jax.eval_shape(lambda: ensemble.start([0])).state
    arms = len(ensemble.arm_ties)
    for name, expected in (("record", sizes.bytes_of_record(decided)), ("validation", sizes.bytes_of_validation(decided))):

        def measure(state, name=name):
            return ensemble.measure(name, seed_keys([0]), state, jnp.int32(0), fed)

        assert expected * arms == bytes_of(shapes_on_one_device(measure, one))


def shapes_on_one_device(measure, state):
    """Return the shapes of the measurements on one device."""
    mesh = Mesh(jax.devices()[:1], (DATA,))
    whole = PartitionSpec()
    return jax.eval_shape(jax.shard_map(measure, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False), state)


def test_constants_match_the_packages_they_mirror():
    assert TextFeed.window == shared.WINDOW


def test_estimate_before_the_text_is_a_lower_bound(data, tmp_path):
    settings = resume.read(STUDY, arguments(data, "--out", tmp_path / "run")).settings
    text, plan = prepare(settings, Console(quiet=True))
    decided = sizes.Decided(text.twins.vocabulary, 1, 3, plan.steps, plan.rows, plan.mesh)
    before, after = sizes.need(settings), sizes.need(settings, decided)
    assert all(least <= number for least, number in zip(before, after, strict=True))
    assert 0 < before.total < after.total


@pytest.mark.parametrize(
    ("line", "memory", "words"),
    [
        ("--epochs 1e9", None, ("--epochs: 1000000000.0 results in", "steps, expected at most 1,000,000,000")),
        ("--tokenizer {tokenizer}", 600_000, ("the run needs at least", "this machine has 586 KiB")),
    ],
)
def test_sizes_known_from_the_text_are_checked_before_the_run_directory(
    data, tmp_path, launched, monkeypatch, line, memory, words
):
    first = resume.read(STUDY, arguments(data, "--out", tmp_path / "run")).settings
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(prepare(first, Console(quiet=True))[0].tokenizer)
    if memory is not None:
        monkeypatch.setattr(shared, "machine_memory", lambda: memory)
    line = line.format(tokenizer=tokenizer)
    with pytest.raises(BadInput) as refused:
        launched(arguments(data, "--out", tmp_path / "run", "--quiet", *line.split()))
    for word in words:
        assert word in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
