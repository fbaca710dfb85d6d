"""The contexts of EXor and their probabilities. Oracle: a slow loop over every visit."""

import collections

import numpy as np
import pytest
from exor_visits import every_visit, variant

from tiejax.lab.studies.exor.contexts import all_contexts, count_contexts, most_outcomes
from tiejax.lab.studies.exor.task import EXor, split


@pytest.mark.parametrize(
    "task", [variant("main", 4), variant("no-dh", 3), EXor(3, (0.2, 0.3, 0.5), (1.0,)), variant("main", 2)]
)
@pytest.mark.parametrize("ordered", [False, True])
def test_contexts_cover_every_visit(task, ordered):
    """Weights and targets, summed over contexts that a model without positions cannot distinguish, equal the slow loop's."""

    def key(context):
        return tuple(context) if ordered else tuple(sorted(context))

    contexts = all_contexts(task, ordered)
    assert len(contexts.tokens) == count_contexts(task, ordered) == len({key(c) for c in contexts.tokens.tolist()})
    for member, rows in enumerate(split(task.bits).values()):
        if len(rows) == 0:
            assert np.isnan(contexts.weight[member]).all()
            continue
        joint = collections.Counter()
        for context, _, target, weight in every_visit(task, rows):
            joint[key(context), target] += weight
        found = {
            (key(context), symbol): contexts.weight[member, row] * contexts.target[row, symbol]
            for row, context in enumerate(contexts.tokens.tolist())
            for symbol in range(task.vocabulary)
            if contexts.weight[member, row] * contexts.target[row, symbol] > 0
        }
        assert found.keys() == {pair for pair, weight in joint.items() if weight > 0}
        np.testing.assert_allclose([found[pair] for pair in found], [joint[pair] for pair in found], rtol=1e-12)
    assert all(tokens[position] == task.mask for tokens, position in zip(contexts.tokens, contexts.position, strict=True))


def test_context_counts_of_the_published_task():
    assert count_contexts(variant("main"), ordered=False) == 161
    assert count_contexts(variant("main"), ordered=True) == 56_896


def test_too_many_contexts_are_rejected():
    # 1,023 strings, 10 masks, 2^9 spellings of the other bits.
    with pytest.raises(ValueError, match=r"5,237,760 contexts exceed the limit of the exact risk, 1,048,576"):
        all_contexts(variant("main", 10), ordered=True)


@pytest.mark.parametrize("bits", [3, 7, 9])
def test_most_outcomes_equals_a_count(bits):
    task = EXor(bits, (0.5, 0.5), (0.1, 0.9))
    contexts = all_contexts(task, ordered=False)
    zeros = np.isin(contexts.tokens, (0, 1)).sum(1) + (contexts.bit == 0)
    by_kind = np.bincount(zeros, weights=(contexts.target > 0).sum(1))
    assert most_outcomes(task) == by_kind.max()
