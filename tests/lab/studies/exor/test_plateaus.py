"""Plateaus against an enumeration of every string, spelling and mask; assignment and members by hand."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from tiejax.lab.studies.exor.contexts import all_contexts
from tiejax.lab.studies.exor.plateaus import Level, assign, levels, predictors, table
from tiejax.lab.studies.exor.task import EXor, bayes_risk, split

TASK = EXor(3, (0.1, 0.9), (0.5, 0.5))


def enumerated(task, known):
    """Return the loss of the best predictor that is told `known(others, parity)` about a context.

    others: number of visible occurrences of each symbol.
    """
    joint = defaultdict(lambda: defaultdict(float))
    rows = split(task.bits)["train"].tolist()
    spellings = [task.used["zero"], task.used["one"]]
    for string, place in itertools.product(rows, range(task.bits)):
        for spelled in itertools.product(*(spellings[bit] for bit in string)):
            probability = math.prod(task.probability[symbol] for symbol in spelled) / len(rows) / task.bits
            others = [symbol for k, symbol in enumerate(spelled) if k != place]
            counts = [others.count(symbol) for symbol in range(4)]
            joint[known(counts, sum(string) % 2)][spelled[place]] += probability
    return -sum(p * math.log(p / sum(group.values())) for group in joint.values() for p in group.values())


KNOWN = {
    "the bit and its spellings (Bayes)": lambda n, parity: (parity, n[2] + n[3]),
    "only the frequencies of the symbols": lambda n, parity: (),
    "parity alone": lambda n, parity: parity,
    "set bits alone": lambda n, parity: n[2] + n[3],
    "parity and the number of 0b": lambda n, parity: (parity, n[1]),
    "parity and the number of 1a": lambda n, parity: (parity, n[2]),
    "parity and set bits less others, 0a ignored": lambda n, parity: (parity, n[2] + n[3] - n[1]),
    "parity and set bits less others, 1b ignored": lambda n, parity: (parity, n[2] - n[0] - n[1]),
    "parity and set bits, 1 or more alike": lambda n, parity: (parity, min(n[2] + n[3], 1)),
    "parity and set bits, 1 or fewer alike": lambda n, parity: (parity, max(n[2] + n[3], 1)),
}


@pytest.mark.parametrize("task", [TASK, EXor(2, (0.1, 0.9), (0.3, 0.7))], ids=["3 bits", "2 bits"])
def test_levels_against_an_enumeration(task):
    found = dict(predictors(task, all_contexts(task, ordered=False)))
    checked = [name for name in KNOWN if name in found]
    assert len(checked) == (10 if task.bits == 3 else 8)  # two bits leave no counts to find alike
    for name in checked:
        assert found[name] == pytest.approx(enumerated(task, KNOWN[name]), rel=1e-12), name


def test_ordered_contexts_give_the_same_levels():
    found = dict(predictors(TASK, all_contexts(TASK, ordered=False)))
    ordered = dict(predictors(TASK, all_contexts(TASK, ordered=True)))
    assert found == pytest.approx(ordered, rel=1e-12)


def test_levels_of_two_bits_by_hand():
    """Training strings of two bits are two of 00, 01 and 10; without spellings the marginal loss is an entropy of the bit."""
    task = EXor(2, (1.0,), (1.0,))
    share = split(2)["train"].mean()
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    found = dict(predictors(task, all_contexts(task, ordered=False)))
    assert found["only the frequencies of the symbols"] == pytest.approx(entropy)
    assert found["the bit and its spellings (Bayes)"] == pytest.approx(0, abs=1e-12)
    assert found["the bit, with all its spellings equally likely"] == 0


def test_levels_of_main_are_the_observed_plateaus():
    """Models of main stay near .65, 1.05 and 1.20; the Bayes loss of the training split is .5077."""
    found = levels(EXor())
    losses = [level.loss for level in found]
    assert losses == sorted(losses)
    assert (found[0].knows, found[-1].knows) == ("the bit and its spellings (Bayes)", "only the frequencies of the symbols")
    assert found[0].loss == pytest.approx(bayes_risk(EXor(), split(7)["train"])[1], rel=1e-12)
    named = {level.knows: round(level.loss, 4) for level in found}
    assert named["parity and set bits less others, 0a ignored"] == 0.6476
    assert named["parity and the number of 0b"] == 1.0365
    assert named["only the frequencies of the symbols"] == 1.2009
    # ln 2 for the spelling of a known bit.
    assert named["the bit, with all its spellings equally likely"] == 0.6931
    assert "parity alone" in found[-1].also


def test_predictors_that_know_more_lose_less():
    found = dict(predictors(EXor(), all_contexts(EXor(), ordered=False)))
    chain = ["the bit and its spellings (Bayes)", *(f"parity and set bits, {most} or more alike" for most in range(5, 0, -1))]
    chain += ["parity alone", "only the frequencies of the symbols"]
    assert sorted(chain, key=found.__getitem__) == chain


def test_the_nearest_level_within_three_hundredths_is_assigned():
    by_loss = [Level("a", 0.5), Level("b", 0.55), Level("c", 1.0)]
    losses = np.array([[0.5, 0.52, 0.526, 0.579], [0.581, 0.471, 0.469, np.nan]])
    assert assign(losses, by_loss).tolist() == [[0, 0, 1, 1], [-1, 0, -1, -1]]


def test_table_counts_members():
    by_loss = [Level("a", 0.5), Level("b", 1.0)]
    found = table(np.array([[0.5, 0.7, np.nan], [1.0, 0.51, 1.01]]), by_loss, ["untied", "tied"])
    assert found["members"] == {"untied": [1, 0, 2], "tied": [1, 2, 0]}
