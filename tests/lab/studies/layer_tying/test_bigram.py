"""Tests of the bigram model of the blocks that a seed reads, by brute force, and of the gate's settings."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying import text
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import losses_of_bigram, seen

VOCABULARY = 5


def probability(pairs, first, second):
    """Return Witten and Bell's p(second | first) by counting."""
    ends = [end for _, end in pairs]
    unigram = (ends.count(second) + len(set(ends)) / VOCABULARY) / (len(ends) + len(set(ends)))
    after = [end for begin, end in pairs if begin == first]
    return (after.count(second) + len(set(after)) * unigram) / (len(after) + len(set(after))) if after else unigram


@pytest.mark.parametrize("details", ["own", "published"])
def test_bigram_of_the_blocks_that_the_steps_read_judged_as_models_are(details):
    """7 steps in groups of 3: the last group trains one batch, and the rewards' batches are not counted."""
    rng = np.random.default_rng(0)
    blocks = {
        split: rng.integers(0, VOCABULARY, (number, 6)) for split, number in (("train", 40), ("validation", 23), ("test", 25))
    }
    whole = text.Text(SimpleNamespace(vocabulary=VOCABULARY, begin=0), blocks)
    settings = Settings(details=details, batch_size=2, k=3, steps=7, context=6, validation_blocks=7, test_blocks=11).resolved()
    data = text.build_data(settings, whole)
    trained = np.concatenate([batch.tokens for group in range(3) for batch in data.group(4, group)[:3]][:7])
    found = seen(settings, whole, 4)
    assert sorted({tuple(row) for row in trained}) == sorted(map(tuple, blocks["train"][found]))
    assert len(set(found)) == len(found) < 40

    def pairs_of(block):
        row = [*block.tolist(), *([0] if details == "published" else [])]
        return list(itertools.pairwise(row))

    pairs = [pair for block in blocks["train"][found] for pair in pairs_of(block)]
    losses = losses_of_bigram(settings, whole, 4)
    for split, batches in {**data.held_out, "selection": data.selection}.items():
        expected = [
            np.mean(
                [-np.log(probability(pairs, *pair)) for block in batch.tokens[batch.weight > 0] for pair in pairs_of(block)]
            )
            for batch, _ in batches
        ]
        assert losses[split] == pytest.approx(np.average(expected, weights=[weight for _, weight in batches]))


def test_the_gate_is_set_where_rates_are_tuned_on_real_text():
    tuned = {"rates": [0.001, 0.002], "corpus": ["a.txt"]}
    assert Settings(**tuned).resolved().gate == 0.1
    assert Settings(**tuned, gate=-9.0).resolved().gate == -9
    for other in ({"rates": [0.001, 0.002]}, {"corpus": ["a.txt"]}, {**tuned, "objective": "masked"}):
        assert Settings(**other).resolved().gate is None
    with pytest.raises(BadInput, match=r"^--gate: the bigram model predicts the next token"):
        Settings(objective="masked", gate=0.1).resolved()


def test_methods_that_must_pass():
    methods = ["agent", "untied", "cycle", "sequence", "all-one"]
    assert Settings(methods=methods).resolved().gated == ["untied"]
    assert Settings(methods=methods, rates=[0.001, 0.002]).resolved().gated == ["agent", "untied", "cycle", "all-one"]
    assert Settings(methods=["agent", "cycle"]).resolved().gated == ["agent", "cycle"]
