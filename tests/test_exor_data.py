"""EXor: the published split, the samplers, and everything that can be computed exactly. Oracles are slow Python loops."""

import collections
import itertools
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tiejax.studies.exor import batches as exor_batches
from tiejax.studies.exor import risk as exact_risk
from tiejax.studies.exor import task as exor
from tiejax.studies.exor.risk import Expectations
from tiejax.training import stream

# The spec's table, to the four digits that it gives.
TABLE = {"main": (0.7016, 0.5077), "dh": (0.7520, 0.3438), "no-dh": (0.9504, 0.1613)}
BY_SPLIT = {
    "main": {"train": (0.7015, 0.5077), "validation": (0.7000, 0.5091)},
    "dh": {"train": (0.7519, 0.3440), "validation": (0.7500, 0.3466)},
    "no-dh": {"train": (0.9504, 0.1613), "validation": (0.9500, 0.1625)},
}


def variant(name, bits=7):
    return exor.EXor(bits, *exor.VARIANTS[name])


def every_visit(task, rows):
    """Every (context, target) that visits to these strings can give, with its probability; a slow loop."""
    used, probability = (task.used["zero"], task.used["one"]), task.probability
    for string in rows.tolist():
        parity = task.odd if sum(string) % 2 else task.even
        for spelled in itertools.product(*(used[bit] for bit in string)):
            weight = math.prod(probability[symbol] for symbol in spelled) / len(rows) / task.bits
            for position in range(task.bits):
                context = (*spelled[:position], task.mask, *spelled[position + 1 :], parity)
                yield context, position, spelled[position], weight


def bayes_by_enumeration(task, rows):
    joint = collections.defaultdict(lambda: collections.defaultdict(float))
    for context, _, target, weight in every_visit(task, rows):
        joint[context][target] += weight
    accuracy = sum(max(targets.values()) for targets in joint.values())
    entropy = -sum(p * math.log(p / sum(targets.values())) for targets in joint.values() for p in targets.values())
    return accuracy, entropy


def test_strings_leave_out_all_ones():
    rows = exor.strings(7)
    assert ["".join(map(str, row)) for row in rows.tolist()] == [format(n, "07b") for n in range(127)]


def test_the_published_split():
    numbers = list(range(127))
    random.Random(14).shuffle(numbers)
    parts = exor.split(7)
    assert [len(parts[name]) for name in exor.SPLITS] == [114, 12, 1]
    together = np.concatenate([parts[name] for name in exor.SPLITS])
    assert [int("".join(map(str, row)), 2) for row in together.tolist()] == numbers


@pytest.mark.parametrize("name", exor.VARIANTS)
def test_bayes_gives_the_table_of_the_specification(name):
    task = variant(name)
    assert tuple(round(value, 4) for value in exor.bayes(task, exor.strings(7))) == TABLE[name]
    for part, expected in BY_SPLIT[name].items():
        assert tuple(round(value, 4) for value in exor.bayes(task, exor.split(7)[part])) == expected


@given(
    st.integers(2, 4), st.lists(st.integers(0, 5), min_size=1, max_size=3), st.lists(st.integers(0, 5), min_size=1, max_size=3)
)
@settings(max_examples=25, deadline=None)
def test_bayes_from_first_principles(bits, zero, one):
    zero, one = [[1] if sum(counts) == 0 else counts for counts in (zero, one)]
    task = exor.EXor(bits, tuple(c / sum(zero) for c in zero), tuple(c / sum(one) for c in one))
    expected = bayes_by_enumeration(task, exor.strings(bits))
    np.testing.assert_allclose(exor.bayes(task, exor.strings(bits)), expected, atol=1e-12)


@pytest.mark.parametrize(
    "task", [variant("main", 4), variant("no-dh", 3), exor.EXor(3, (0.2, 0.3, 0.5), (1.0,)), variant("main", 2)]
)
@pytest.mark.parametrize("ordered", [False, True])
def test_contexts_hold_every_visit(task, ordered):
    """Weights and targets, summed over contexts that a position-free model cannot tell apart, are those of the slow loop."""

    def key(context):
        return tuple(context) if ordered else tuple(sorted(context))

    known = exor.contexts(task, ordered)
    assert len(known.tokens) == exor.count_contexts(task, ordered) == len({key(c) for c in known.tokens.tolist()})
    for member, rows in enumerate(exor.split(task.bits).values()):
        if len(rows) == 0:
            assert np.isnan(known.weight[member]).all()
            continue
        joint = collections.Counter()
        for context, _, target, weight in every_visit(task, rows):
            joint[key(context), target] += weight
        found = {
            (key(context), symbol): known.weight[member, row] * known.target[row, symbol]
            for row, context in enumerate(known.tokens.tolist())
            for symbol in range(task.vocabulary)
            if known.weight[member, row] * known.target[row, symbol] > 0
        }
        assert found.keys() == {pair for pair, weight in joint.items() if weight > 0}
        np.testing.assert_allclose([found[pair] for pair in found], [joint[pair] for pair in found], rtol=1e-12)
    assert all(tokens[position] == task.mask for tokens, position in zip(known.tokens, known.position, strict=True))


def test_context_counts_of_the_published_task():
    assert exor.count_contexts(variant("main"), ordered=False) == 161
    assert exor.count_contexts(variant("main"), ordered=True) == 56_896


def test_too_many_contexts_are_refused_by_number():
    # 1,023 strings, 10 masks, 2^9 spellings of the other bits.
    with pytest.raises(ValueError, match=rf"{1023 * 10 * 2**9} contexts are more than the 1048576"):
        exor.contexts(variant("main", 10), ordered=True)


@pytest.mark.parametrize("ordered", [False, True])
def test_exact_risk_against_a_slow_loop(x64, ordered):
    """A model that reads the multiset of its context: expectations by loop over every visit, blocks that do not divide."""
    task = exor.EXor(4, (0.25, 0.75), (0.4, 0.6))
    known = exor.contexts(task, ordered)
    generator = np.random.default_rng(0)
    embedding, output = generator.normal(size=(2, task.vocabulary, 3))

    def encode(params, tokens):
        return jnp.tanh(params["embed"][tokens].sum(1))

    asking = exor.asking_pairs(task, known)
    pairs = {name: symbols for name, (symbols, _) in asking.items()}
    expected = Expectations.of(known.target, known.weight, {name: share for name, (_, share) in asking.items()})
    params = {"embed": jnp.asarray(embedding), "head": jnp.asarray(output)}
    found, whole = (
        jax.jit(exact_risk(encode, lambda params: params["head"], known.tokens, pairs, block))(params, expected)
        for block in (7, 10**6)
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-13), found, whole)

    def state(context):
        return np.tanh(embedding[list(context)].sum(0))

    for member, rows in enumerate(exor.split(task.bits).values()):
        loss = accuracy = 0.0
        for context, _, target, weight in every_visit(task, rows):
            logits = output @ state(context)
            loss -= weight * (logits[target] - np.log(np.exp(logits).sum()))
            accuracy += weight * (logits.argmax() == target)
        np.testing.assert_allclose(found["cross_entropy"][member], loss, rtol=1e-12)
        np.testing.assert_allclose(found["accuracy"][member], accuracy, rtol=1e-12)

    # The zero pair: 1 (p = .75) is likelier than 0 (p = .25), wherever a 0 is masked.
    asked = [
        (state(context), weight)
        for context, position, target, weight in every_visit(task, exor.strings(task.bits))
        if target in task.used["zero"]
    ]
    difference = output[1] - output[0]
    total = sum(weight for _, weight in asked)
    mean = sum(weight * (h @ difference) for h, weight in asked) / total
    residual = math.sqrt(sum(weight * (h @ difference - math.log(3)) ** 2 for h, weight in asked) / total)
    gap = min(np.linalg.norm(h) for h, _ in asked) * np.linalg.norm(difference)
    np.testing.assert_allclose(found["log_ratio_zero"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["log_ratio_residual_zero"], residual, rtol=1e-12)
    np.testing.assert_allclose(found["gap_zero"], gap, rtol=1e-12)


def test_a_visit_is_what_the_specification_says():
    task = variant("main")
    rows = exor.split(7)["train"]
    batch = exor_batches.visit(task, jnp.asarray(rows), jax.random.key(0))
    for row, string in enumerate(rows.tolist()):
        tokens, position, target = (np.asarray(leaf[row]).tolist() for leaf in batch)
        assert tokens[7] == (task.odd if sum(string) % 2 else task.even)
        for place, bit in enumerate(string):
            symbol = tokens[place] if place != position else target
            assert symbol in ((0, 1), (2, 3))[bit]
        assert [place for place in range(8) if tokens[place] == task.mask] == [position]


@pytest.mark.parametrize("task", [variant("main"), variant("dh"), exor.EXor(5, (0.2, 0.0, 0.5, 0.3), (1.0,))])
def test_spellings_and_masks_have_the_stated_distribution(task):
    """Chi-squared of a large draw from one key, against the exact expected frequencies."""
    string = jnp.asarray(np.arange(task.bits) % 2, jnp.int32)[None].repeat(40_000, 0)
    batch = exor_batches.visit(task, string, jax.random.key(3))
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
    # Neighbouring draws are independent: the joint table of two places.
    joint = stats.contingency.crosstab(spelled[:, 0], spelled[:, 2]).count
    if min(joint.shape) > 1:
        assert stats.chi2_contingency(joint).pvalue > 1e-3


def test_visits_differ_by_step_and_by_seed_and_repeat_by_key():
    sampler = exor_batches.Sampler(variant("main"), exor.split(7)["train"])

    def batch(seed, step):
        key = jax.random.key(seed)
        return sampler.batch(stream(key, "data"), stream(key, "order"), jnp.int32(step))

    np.testing.assert_array_equal(batch(7, 5).tokens, batch(7, 5).tokens)
    assert (np.asarray(batch(7, 5).tokens) != np.asarray(batch(7, 6).tokens)).mean() > 0.1
    assert (np.asarray(batch(7, 5).tokens) != np.asarray(batch(8, 5).tokens)).mean() > 0.1


@pytest.mark.parametrize("size", [50, 113, 1])
def test_small_batches_visit_every_string_equally_often(size):
    rows = exor.split(7)["train"]
    strings = jax.jit(lambda step: jnp.asarray(rows)[exor_batches.visited(114, size, jax.random.key(1), step)])
    steps = 2 * 114
    seen = np.concatenate([np.asarray(strings(jnp.int32(step))) for step in range(steps)])
    numbers = (seen @ (2 ** np.arange(6, -1, -1))).reshape(-1, 114)
    epochs = [tuple(epoch) for epoch in numbers]
    assert all(sorted(epoch) == sorted((rows @ (2 ** np.arange(6, -1, -1))).tolist()) for epoch in epochs)
    assert len(set(epochs)) == len(epochs)


@given(st.integers(0, 2**31 - 1), st.integers(2, 65_535), st.data())
@settings(max_examples=50, deadline=None)
def test_place_in_an_endless_row_of_epochs(step, number, data):
    size = data.draw(st.integers(1, number - 1))
    epoch, start = exor_batches._multiply_divmod(jnp.int32(step), size, number)
    expected = divmod(step * size, number)
    if expected[0] < 2**31:
        assert (int(epoch), int(start)) == expected


def test_frozen_validation_is_the_same_every_time():
    task, rows = variant("main"), exor.split(7)["validation"]
    first, second = exor_batches.frozen(task, rows), exor_batches.frozen(task, rows)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert first.tokens.shape == (12, 8)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"bits": 1}, "bits: must lie between 2 and 16, got 1"),
        ({"bits": 17}, "bits: must lie between 2 and 16, got 17"),
        ({"zero": (0.5, 0.6)}, "zero: must sum to 1"),
        ({"one": (-0.1, 1.1)}, "one: probabilities must be finite and not negative"),
        ({"one": (math.nan, 1.0)}, "one: probabilities must be finite"),
        ({"zero": ()}, "zero: needs at least one probability"),
    ],
)
def test_tasks_that_make_no_sense(settings_, words):
    with pytest.raises(ValueError, match=words):
        exor.EXor(**settings_)
