"""Batches of multisets: their joint distribution by a loop over every visit, and the agreement of both representations."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exor_visits import every_visit, variant
from scipy import stats

from tiejax import training
from tiejax.lab.studies.exor.batches import sequences
from tiejax.lab.studies.exor.contexts import MAX_OUTCOMES, count_contexts, most_outcomes
from tiejax.lab.studies.exor.multisets import Sampler, as_multisets, as_sequences
from tiejax.lab.studies.exor.task import EXor, split

TASKS = [variant("main"), variant("no-dh", 5), EXor(4, (0.2, 0.3, 0.5), (0.6, 0.0, 0.4))]


def outcome_of(tokens, target):
    return tuple(sorted(tokens)), target


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=["main", "no-dh", "three spellings"])
def test_joint_distribution_equals_enumeration(task):
    """Exact expected frequencies of (multiset, target) by a loop over every visit, against 600 batches of each sampler."""
    rows = split(task.bits)["train"]
    expected = collections.Counter()
    for context, _, target, weight in every_visit(task, rows):
        expected[outcome_of(context, target)] += weight
    likely = [outcome for outcome, share in expected.items() if share > 0]
    assert abs(sum(expected.values()) - 1) < 1e-12

    steps, key = 600, jax.random.key(5)
    ours = Sampler([task], rows)
    keys = training.stream(key, "data"), training.stream(key, "order")
    for sample in (
        lambda step: as_sequences([task], ours.visits(*keys, step, jnp.int32(0))),
        lambda step: sequences(task, rows, None, *keys, step),
    ):
        batches = jax.jit(jax.vmap(sample))(jnp.arange(steps, dtype=jnp.int32))
        seen = collections.Counter(
            outcome_of(tokens, target)
            for tokens, target in zip(
                np.asarray(batches.tokens).reshape(-1, task.length).tolist(),
                np.asarray(batches.target).ravel().tolist(),
                strict=True,
            )
        )
        assert set(seen) <= set(likely)
        total = steps * len(rows)
        observed = np.array([seen[outcome] for outcome in likely], float)
        wanted = np.array([expected[outcome] for outcome in likely]) * total
        rare = wanted < 10
        if rare.any():
            observed, wanted = (np.append(values[~rare], values[rare].sum()) for values in (observed, wanted))
        assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


@pytest.mark.parametrize(("name", "bits", "size"), [("main", 7, None), ("dh", 7, None), ("main", 8, None), ("main", 7, 40)])
def test_both_representations_are_the_same_batch(name, bits, size):
    task = variant(name, bits)
    rows = split(bits)["train"]
    sampler = Sampler([task], rows, size)
    keys = jax.random.key(1), jax.random.key(2)
    for step in range(3):
        drawn = sampler.visits(*keys, jnp.int32(step), jnp.int32(0))
        batch, multisets = as_sequences([task], drawn), as_multisets([task], drawn)
        visits = len(batch.target)
        assert visits == (size or len(rows))
        assert multisets.counts.shape[1] == min(visits, count_contexts(task, ordered=False))
        expected, found = collections.Counter(), collections.Counter()
        for tokens, target in zip(np.asarray(batch.tokens), np.asarray(batch.target), strict=True):
            expected[tuple(np.bincount(tokens, minlength=task.vocabulary)), int(target)] += 1
        for counts, asked in zip(np.asarray(multisets.counts).T, np.asarray(multisets.asked).T, strict=True):
            for target in np.flatnonzero(asked):
                found[tuple(counts.astype(int)), int(target)] += round(float(asked[target]) * visits)
        assert found == expected


def test_strings_with_too_many_outcomes_are_sampled_and_counted():
    task = EXor(9, (0.2, 0.3, 0.5), (0.3, 0.3, 0.4))
    assert most_outcomes(task) > MAX_OUTCOMES
    rows = split(9)["train"]
    sampler = Sampler([task], rows)
    keys = jax.random.key(1), jax.random.key(2), jnp.int32(4), jnp.int32(0)
    batch = sampler.visits(*keys)
    multisets = as_multisets([task], batch)
    expected = [np.bincount(tokens, minlength=task.vocabulary) for tokens in np.asarray(batch.tokens)]
    np.testing.assert_array_equal(np.asarray(multisets.counts).T, expected)
    np.testing.assert_array_equal(np.argmax(multisets.asked, axis=0), batch.target)
    with pytest.raises(ValueError, match="exceed the limit of alias tables, 1024"):
        Sampler([task, task], rows)


def test_tasks_of_a_sampler_must_share_their_symbols():
    with pytest.raises(ValueError, match="same symbols"):
        Sampler([variant("main"), variant("dh")], split(7)["train"])
