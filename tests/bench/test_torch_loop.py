"""The torch loop follows the study's protocol: the same strings, spellings and masks, and one model of the same size."""

import collections

import pytest

pytest.importorskip("torch")

from experiments.bench.settings import ExorBench
from experiments.bench.torch_loop import Model, Visits, torch_loop
from tiejax.lab.studies.exor import task

pytestmark = pytest.mark.parity


def test_visit_is_a_training_string_with_one_masked_bit():
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


def test_model_has_as_many_parameters_as_the_study():
    """Two tables of 7 symbols x width 4, and one layer of width 4 with feed-forward width 4."""
    model = Model(ExorBench().study_settings("plain", 1))
    layer = 4 * 4 * 4 + 4 * 4 + 2 * 4 * 4 + 4 + 4 + 4 * 4
    assert sum(parameter.numel() for parameter in model.parameters()) == 2 * 7 * 4 + layer


def test_rate_is_positive():
    rate = torch_loop(ExorBench().study_settings("plain", 1))(0.05)
    assert rate > 0
