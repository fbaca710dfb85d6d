"""Batches of EXor: the form of a visit, its distribution by chi-squared tests, and shuffled epochs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exor_visits import variant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tiejax.lab.studies.exor import batches
from tiejax.lab.studies.exor.task import EXor, split
from tiejax.training import stream


def test_visit_follows_the_specification():
    task = variant("main")
    rows = split(7)["train"]
    batch = batches.visit(task, jnp.asarray(rows), jax.random.key(0))
    for row, string in enumerate(rows.tolist()):
        tokens, position, target = (np.asarray(leaf[row]).tolist() for leaf in batch)
        assert tokens[7] == (task.odd if sum(string) % 2 else task.even)
        for place, bit in enumerate(string):
            symbol = tokens[place] if place != position else target
            assert symbol in ((0, 1), (2, 3))[bit]
        assert [place for place in range(8) if tokens[place] == task.mask] == [position]


@pytest.mark.parametrize("task", [variant("main"), variant("dh"), EXor(5, (0.2, 0.0, 0.5, 0.3), (1.0,))])
def test_spellings_and_masks_have_the_stated_distribution(task):
    """Chi-squared test of a large sample from one key against the exact expected frequencies."""
    string = jnp.asarray(np.arange(task.bits) % 2, jnp.int32)[None].repeat(40_000, 0)
    batch = batches.visit(task, string, jax.random.key(3))
    positions = np.bincount(np.asarray(batch.position), minlength=task.bits)
    assert stats.chisquare(positions).pvalue > 1e-3
    spelled = np.where(np.arange(task.bits) == np.asarray(batch.position)[:, None], batch.target[:, None], batch.tokens[:, :-1])
    for place in range(task.bits):
        first, probabilities = ((0, task.zero), (len(task.zero), task.one))[place % 2]
        counts = np.bincount(spelled[:, place] - first, minlength=len(probabilities))
        assert len(counts) == len(probabilities)
        used = np.array(probabilities) > 0
        assert counts[~used].sum() == 0
        assert stats.chisquare(counts[used], 40_000 * np.array(probabilities)[used]).pvalue > 1e-3 or used.sum() == 1
    # Spellings at different positions are independent: contingency table of two positions.
    joint = stats.contingency.crosstab(spelled[:, 0], spelled[:, 2]).count
    if min(joint.shape) > 1:
        assert stats.chi2_contingency(joint).pvalue > 1e-3


def test_visits_differ_by_step_and_by_seed_and_repeat_by_key():
    rows = split(7)["train"]

    def batch(seed, step):
        key = jax.random.key(seed)
        return batches.sequences(variant("main"), rows, None, stream(key, "data"), stream(key, "order"), jnp.int32(step))

    np.testing.assert_array_equal(batch(7, 5).tokens, batch(7, 5).tokens)
    assert (np.asarray(batch(7, 5).tokens) != np.asarray(batch(7, 6).tokens)).mean() > 0.1
    assert (np.asarray(batch(7, 5).tokens) != np.asarray(batch(8, 5).tokens)).mean() > 0.1


@pytest.mark.parametrize("size", [50, 113, 1])
def test_small_batches_visit_every_string_equally_often(size):
    rows = split(7)["train"]
    strings = jax.jit(lambda step: jnp.asarray(rows)[batches.visited(114, size, jax.random.key(1), step)])
    steps = 2 * 114
    seen = np.concatenate([np.asarray(strings(jnp.int32(step))) for step in range(steps)])
    numbers = (seen @ (2 ** np.arange(6, -1, -1))).reshape(-1, 114)
    epochs = [tuple(epoch) for epoch in numbers]
    assert all(sorted(epoch) == sorted((rows @ (2 ** np.arange(6, -1, -1))).tolist()) for epoch in epochs)
    assert len(set(epochs)) == len(epochs)


@given(st.integers(0, 2**31 - 1), st.integers(2, 65_535), st.data())
@settings(max_examples=50, deadline=None)
def test_position_in_the_sequence_of_epochs(step, number, data):
    size = data.draw(st.integers(1, number - 1))
    epoch, start = batches._multiply_divmod(jnp.int32(step), size, number)
    expected = divmod(step * size, number)
    if expected[0] < 2**31:
        assert (int(epoch), int(start)) == expected


def test_frozen_validation_is_deterministic():
    task, rows = variant("main"), split(7)["validation"]
    first, second = batches.frozen(task, rows), batches.frozen(task, rows)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert first.tokens.shape == (12, 8)
