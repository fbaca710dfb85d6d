"""Distances of natural pairs against loops in numpy, and their lists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from tiejax.lab.studies.causal_untying.model import Objective, build_model
from tiejax.lab.studies.causal_untying.natural import (
    AHEAD,
    LISTS,
    OCCURRENCES,
    contexts_of,
    distances,
    jensen_shannon,
    lists_of,
    pairs_by_list,
    relative_distances,
)
from tiejax.lab.studies.causal_untying.settings import Settings

SETTINGS = Settings(corpus=["x"], vocab_size=40, layers=2, width=16, heads=4, context=30, out="out").resolved()
PAIRS = np.array([[1, 2], [3, 4], [5, 39]])


def blocks():
    """Token 39 occurs only near the ends of blocks."""
    found = np.random.default_rng(0).integers(0, 39, (30, 30)).astype(np.int32)
    found[:, -1] = 39
    return found


def test_the_divergence_is_that_of_scipy():
    first, second = np.random.default_rng(1).dirichlet(np.ones(7), (2, 5))
    expected = [jensenshannon(*pair) ** 2 for pair in zip(first, second, strict=True)]
    np.testing.assert_allclose(jensen_shannon(jnp.log(first), jnp.log(second)), expected, rtol=1e-4)


def test_contexts_have_both_words_at_their_place():
    found = contexts_of(blocks(), PAIRS)
    for number, (first, second) in enumerate(PAIRS[:2]):
        for place, (word, other) in enumerate([(first, second)] * OCCURRENCES + [(second, first)] * OCCURRENCES):
            if not found.weight[number, place]:
                continue
            at = found.place[number, place]
            assert AHEAD <= at < 30 - AHEAD
            assert (found.tokens[number, place, at], found.swapped[number, place, at]) == (word, other)
            changed = np.flatnonzero(found.tokens[number, place] != found.swapped[number, place])
            assert changed.tolist() == [at]
        halves = found.weight[number].reshape(2, -1).sum(axis=1)
        assert halves[0] == halves[1] > 5
    assert found.weight[2].sum() == 0


@pytest.mark.slow
def test_distances_are_those_of_loops():
    model = build_model(SETTINGS, 40, next(arm for arm in SETTINGS.arms if arm.name == "never-equal"))
    objective = Objective(model, np.zeros(40, np.int32), 1)
    params = jax.tree.map(lambda leaf: 5 * leaf, objective.init(jax.random.key(0)))
    contexts = contexts_of(blocks(), PAIRS)
    found = distances(objective, params, PAIRS, contexts)

    def log_probabilities(tokens):
        logits = np.asarray(model.apply({"params": params}, jnp.asarray(tokens)), float)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    for number, pair in enumerate(PAIRS[:2]):
        before, after = (log_probabilities(tokens[number]) for tokens in (contexts.tokens, contexts.swapped))
        divergences, ratios = [], []
        for place in np.flatnonzero(contexts.weight[number]):
            at = contexts.place[number, place]
            divergences += [jensenshannon(*np.exp([before[place, at + k], after[place, at + k]])) ** 2 for k in range(AHEAD)]
            ratios.append(before[place, at - 1, pair[0]] - before[place, at - 1, pair[1]])
        np.testing.assert_allclose(found["semantic"][number], np.mean(divergences), rtol=2e-3)
        np.testing.assert_allclose(found["conditional"][number], np.mean(np.abs(ratios - np.median(ratios))), rtol=2e-3)
    assert np.isnan(found["semantic"][2])


def test_lists_are_fifths_of_both_distances():
    """The semantic distance of pair k is k; conditional ones are 9 - k, except that pairs 0 and 9 trade theirs."""
    semantic = np.arange(10.0)
    conditional = 9 - semantic
    conditional[[0, 9]] = conditional[[9, 0]]
    measured = {"pairs": np.arange(20).reshape(10, 2), "semantic": np.stack([semantic] * 2), "conditional": conditional[None]}
    found = {name: numbers.tolist() for name, numbers in lists_of(measured).items()}
    assert found == dict(zip(LISTS, ([0], [1], [8], [9]), strict=True))
    by_list = pairs_by_list(measured)
    assert by_list["other"].tolist() == [[4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert sum(map(len, by_list.values())) == 10


def test_relative_distances_are_ratios_of_means_within_a_model():
    kinds = [LISTS[0], LISTS[0], LISTS[2], "other"]
    at_end = np.array([[1.0, 3, 4, 8], [2, 2, 2, 2]])
    arrays = {f"tied/train_pair_{table}": np.stack([at_end * 7, at_end], axis=1) for table in ("input", "output")}
    found = relative_distances(arrays, kinds, ["tied"])
    assert found == {"tied": {table: {LISTS[0]: (0.5 + 1) / 2, LISTS[2]: 1.0} for table in ("input", "output")}}
