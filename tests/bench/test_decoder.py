"""The benchmark of tied layers compared with torch: both sides train models of the same size."""

import json

import jax
import numpy as np
import pytest

from experiments.bench import decoder
from experiments.bench.settings import DecoderBench
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.layer_tying.model import build_model, initial

SETTINGS = DecoderBench(layers=[4], share=2, width=32, vocab_size=40, context=8, batch_size=2, seconds=0.001)


@pytest.mark.parity
@pytest.mark.parametrize("architecture", ["gpt2", "bert"])
@pytest.mark.parametrize("distinct", [4, 2])
def test_both_sides_have_the_same_number_of_parameters(architecture, distinct):
    torch_decoder = pytest.importorskip("experiments.bench.torch_decoder")
    size = {"width": 24, "heads": 3, "vocab_size": 40, "context": 8, "batch_size": 2}
    settings = DecoderBench(layers=[4], share=2, architecture=architecture, **size)
    study = settings.study_settings(4, "compact")
    owner = np.unique(decoder.owner_of(4, distinct))
    ours = jax.eval_shape(initial(study, build_model(study, 40)), jax.random.key(0), owner.astype(np.int32))
    number = sum(leaf.size for leaf in jax.tree.leaves(ours)) - ours["head"]["embedding"].size  # tied to the input table
    job = decoder.job_of(settings, decoder.Entry("torch", 4, distinct))
    assert job.heads == 3
    model = torch_decoder.build(job)
    assert sum(parameter.numel() for parameter in model.parameters()) == number


@pytest.mark.bench
def test_results(tmp_path, capsys):
    pytest.importorskip("torch")
    settings = DecoderBench(
        layers=[4], share=2, width=32, vocab_size=40, context=8, batch_size=2, seconds=0.001, out=str(tmp_path)
    )
    decoder.run(settings, Console())
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    sides = "ours", "torch", "torch-each"
    assert [(row["side"], row["distinct"]) for row in rows] == [(side, distinct) for distinct in (4, 2) for side in sides]
    for row in rows:
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert (row["over_torch"] is None) is (row["over_torch_each"] is None) is (row["side"] != "ours")
    assert capsys.readouterr().out.splitlines()[-1] == f"results: {tmp_path / 'results.json'}"


def test_rates_become_milliseconds_per_step():
    ours, torch, each = (decoder.Entry(side, 4, 2) for side in ("ours", "torch", "torch-each"))
    rates = {ours: [1600.0, 3200.0, 1600.0], torch: [800.0, 800.0, 1600.0], each: [3200.0, 1600.0, 1600.0]}
    row = decoder.row_of(SETTINGS, ours, rates)
    assert (row["median"], row["min"], row["max"]) == (10.0, 5.0, 10.0)  # a step has 2 x 8 tokens
    assert row["over_torch"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert row["over_torch_each"] == {"median": 1.0, "min": 0.5, "max": 2.0}
    other = decoder.row_of(SETTINGS, torch, rates)
    assert (other["median"], other["over_torch"], other["over_torch_each"]) == (20.0, None, None)


def test_torch_trains_a_model_on_each_core_or_one_on_all(monkeypatch):
    monkeypatch.setattr(decoder.environment, "cores", lambda: 6)
    counts = {side: decoder.processes(decoder.Entry(side, 4, 2)) for side in ("ours", "torch", "torch-each")}
    assert counts == {"ours": 1, "torch": 1, "torch-each": 6}


@pytest.mark.parity
@pytest.mark.parametrize(("side", "threads"), [("torch", 6), ("torch-each", 1)])
def test_processes_of_torch_share_the_cores(monkeypatch, side, threads):
    pytest.importorskip("torch")
    monkeypatch.setattr(decoder.environment, "cores", lambda: 6)
    assert decoder.job_of(SETTINGS, decoder.Entry(side, 4, 2)).threads == threads
