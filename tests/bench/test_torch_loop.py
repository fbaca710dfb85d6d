"""The torch loop trains the protocol of the study: the same strings, spellings and masks, one model."""

import collections

import pytest

pytest.importorskip("torch")

from experiments.bench.settings import ExorBench
from experiments.bench.torch_loop import Model, Visits, torch_loop
from tiejax.lab.studies.exor import task

pytestmark = pytest.mark.parity


def test_a_visit_is_a_training_string_with_one_masked_bit():
    exor = task.EXor()
    visits, rows = Visits(exor), task.split(exor.bits)["train"]
    assert len(visits) == len(rows) == 114
    spelled = collections.Counter()
    for index, bits in enumerate(rows.tolist()):
        tokens, position, target = visits[index]
        tokens = tokens.tolist()
        assert tokens[position] == exor.mask
        tokens[position] = target
        assert [symbol in exor.spellings["one"] for symbol in tokens[:-1]] == [bit == 1 for bit in bits]
        assert tokens[-1] == (exor.odd if sum(bits) % 2 else exor.even)
        spelled.update(tokens[:-1])
    assert spelled[1] / (spelled[0] + spelled[1]) == pytest.approx(exor.zero[1], abs=0.05)
    assert spelled[2] / (spelled[2] + spelled[3]) == pytest.approx(exor.one[0], abs=0.08)


def test_the_model_has_the_parameters_of_the_study():
    """8 x 4 tables are 7 x 4: seven symbols; one layer of width 4 with feed-forward 4."""
    model = Model(ExorBench().study_settings("plain", 1))
    layer = 4 * 4 * 4 + 4 * 4 + 2 * 4 * 4 + 4 + 4 + 4 * 4
    assert sum(parameter.numel() for parameter in model.parameters()) == 2 * 7 * 4 + layer


def test_it_trains_and_says_how_fast():
    rate = torch_loop(ExorBench().study_settings("plain", 1))(0.05)
    assert rate > 0
