"""The benchmark of pre-training an encoder, at a tiny size: the sides that are compared, and the results on disk."""

import dataclasses
import importlib.util
import json

import contenders
import numpy as np
import pytest

from experiments.bench import encoder
from experiments.bench.encoder import Entry, OurJob
from experiments.bench.settings import EncoderBench
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console

WORDS = ("the", "day", "was", "long", "and", "night", "cold", "but", "nobody", "in", "old", "house", "river", "could", "sleep")


@pytest.fixture
def settings(tmp_path):
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(WORDS, rng.integers(4, 12))).capitalize() + "." for _ in range(400)]
    (tmp_path / "novel.txt").write_text(" ".join(sentences))
    return EncoderBench(
        corpus=[str(tmp_path / "novel.txt")],
        data_dir=str(tmp_path / "data"),
        vocab_size=80,
        batch_rows=2,
        seconds=0.05,
        out=str(tmp_path / "out"),
    )


def results_of(settings):
    with open(f"{settings.out}/results.json") as file:
        return json.load(file)


@pytest.mark.slow
def test_forms_are_compared_separately(settings, monkeypatch, capsys):
    """Each side trains at a fixed rate per process, so at twice that rate with one model on each of two cores."""
    monkeypatch.setattr(environment, "cores", lambda: 2)
    sides = {name: side._replace(packages=(), train=contenders.at_rate) for name, side in encoder.SIDES.items()}
    monkeypatch.setattr(encoder, "SIDES", sides)
    rates = {"ours": 3000, "trainer": 1000, "loop": 1500}

    def jobs_of(settings, entry, text, planned, tokenizer):
        assert json.loads(tokenizer.read_text())["model"]
        return [rates[entry.side]] * entry.models

    monkeypatch.setattr(encoder, "jobs_of", jobs_of)
    encoder.run(settings, Console())
    results = results_of(settings)
    assert (results["benchmark"], results["config"]) == ("encoder", dataclasses.asdict(settings))
    found = {(row["side"], row["models"]): row for row in results["rows"]}
    assert found.keys() == {(side, models) for side in rates for models in (1, 2)}
    for (side, models), row in found.items():
        assert row["median"] == pytest.approx(models * rates[side])
        assert (row["processes"], row["threads"]) == ((1, 2) if side == "ours" or models == 1 else (2, 1))
    ratios = {(ratio["over"], ratio["models"]): ratio for ratio in results["ratios"]}
    assert ratios.keys() == {(side, models) for side in ("trainer", "loop") for models in (1, 2)}
    for (side, _), ratio in ratios.items():
        assert ratio["min"] == pytest.approx(3000 / rates[side]) == ratio["median"] == ratio["max"]
    mean = results["tokens_per_step"] / results["sentences_per_step"]
    assert 6 < mean < 15  # tokens of a sentence, with [CLS], [SEP] and the full stop
    lines = capsys.readouterr().out.splitlines()
    assert sum("tokens/s (" in line for line in lines) == 6
    assert "one model on 2 cores: ours is 3.00 x the library's trainer (3.00 to 3.00)" in lines
    assert "2 models, one per core: ours is 2.00 x the plain torch loop (2.00 to 2.00)" in lines
    assert lines[-1].startswith("results: ")


@pytest.mark.bench
def test_only_ours_without_torch(settings, monkeypatch, capsys):
    monkeypatch.setattr(environment, "cores", lambda: 1)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("torch", "accelerate") else find(name))
    encoder.run(settings, Console())
    results = results_of(settings)
    (row,) = results["rows"]
    assert (row["side"], row["models"]) == ("ours", 1)
    assert 0 < row["min"] <= row["median"] <= row["max"]
    assert results["ratios"] == []
    lines = capsys.readouterr().out.splitlines()
    assert "torch, accelerate not installed: the library's trainer is left out (pip install -e '.[parity]')" in lines
    assert "torch not installed: the plain torch loop is left out (pip install -e '.[parity]')" in lines


@pytest.mark.bench
def test_every_side_trains(settings, monkeypatch):
    for name in ("torch", "transformers", "accelerate"):
        pytest.importorskip(name)
    monkeypatch.setattr(environment, "cores", lambda: 1)
    encoder.run(settings, Console())
    results = results_of(settings)
    assert [(row["side"], row["models"]) for row in results["rows"]] == [("ours", 1), ("trainer", 1), ("loop", 1)]
    assert all(row["min"] > 0 for row in results["rows"])
    assert len(results["ratios"]) == 2


@pytest.mark.bench
def test_our_tokens_are_counted_for_every_model(settings):
    """Two models read the same rows as one, about the plan's mean number of tokens per step."""
    text = encoder.prepare_text(settings.study_settings(1), Console(quiet=True), False)
    planned = encoder.plan(settings.study_settings(1), text, 1)
    one, two = (encoder.train_ours(OurJob(settings, seeds))(1e-6).tokens for seeds in (1, 2))
    assert two == 2 * one
    assert one == pytest.approx(planned.tokens, rel=0.2)


def test_devices_share_one_model_or_train_one_each(settings):
    text = encoder.prepare_text(settings.study_settings(1), Console(quiet=True), False)
    assert [encoder.plan(settings.study_settings(seeds), text, 2).mesh for seeds in (1, 2)] == [2, 1]


def test_ratios_are_taken_by_measurement():
    rates = {Entry("ours", 1): [4.0, 9.0, 4.0], Entry("loop", 1): [2.0, 3.0, 1.0]}
    expected = {"over": "loop", "models": 1, "median": 3.0, "min": 2.0, "max": 4.0}
    assert encoder.ratio_of(Entry("loop", 1), rates) == expected
