"""Parameter counts from shapes: a small shape by hand, and every row of the paper's tables within 2 %."""

import functools

import pytest

from tiejax.lab.runs import entry
from tiejax.lab.studies.embedding_coupling.settings import STUDY
from tiejax.lab.studies.embedding_coupling.sizes import counted, parameters, table
from tiejax.models.shapes import PUBLISHED_SHAPES, Shape

count_parameters = functools.partial(parameters, pooler=True)


def by_hand(vocabulary, e_in, e_out, h, layers, positions=512, types=2):
    """Return the parameter counts of an untied model of the paper in pre-training and in fine-tuning."""
    embeddings = (vocabulary + positions + types) * e_in + 2 * e_in + (e_in * h + h if e_in != h else 0)
    attention = 4 * (h * h + h)
    layer = attention + (h * 4 * h + 4 * h) + (4 * h * h + h) + 2 * 2 * h
    head = h * e_out + e_out + 2 * e_out + vocabulary * e_out + vocabulary
    pooler = h * h + h
    encoder = embeddings + layers * layer + pooler
    return encoder + head, encoder


def test_a_small_shape_by_hand():
    assert count_parameters(Shape(4, 6, 8, 2, 2), 11, 16) == by_hand(11, 4, 6, 8, 2, 16)
    assert count_parameters(Shape(8, 8, 8, 2, 2), 11, 16) == by_hand(11, 8, 8, 8, 2, 16)


def test_a_coupled_table_counts_once_and_dropped_layers_only_in_pretraining():
    pretraining, fine_tuning = by_hand(11, 8, 8, 8, 3, 16)
    assert count_parameters(Shape(8, 8, 8, 3, 2, coupled=True), 11, 16) == (pretraining - 11 * 8, fine_tuning)
    assert count_parameters(Shape(8, 8, 8, 3, 2, drop=1), 11, 16) == (pretraining, by_hand(11, 8, 8, 8, 2, 16)[1])


@pytest.mark.parametrize("published", PUBLISHED_SHAPES, ids=lambda published: published.name)
def test_published_counts_within_two_percent(published):
    assert max(abs(residual) for *_, residual in counted(published)) < 0.02


def test_printed_shape_of_rembert_does_not_give_its_printed_count():
    """With E_out 1,536, as printed, RemBERT would have 3 % fewer parameters than the printed number."""
    assert abs(count_parameters(Shape(256, 1536, 1152, 32, 18), 250_300)[0] / 995e6 - 1) > 0.02


def test_count_prints_every_row(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert entry.main(STUDY, ["--count"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(PUBLISHED_SHAPES) == 19
    assert "include BERT's pooler" in lines[-1]
    assert lines == table()
    rembert = next(line for line in lines if line.startswith("RemBERT")).split()
    assert rembert == ["RemBERT", "994.6", "995", "-0.04%", "575.9", "575", "+0.16%"]
    assert list(tmp_path.iterdir()) == []
