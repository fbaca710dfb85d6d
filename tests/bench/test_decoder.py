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
    settings = DecoderBench(layers=[4], share=2, width=32, vocab_size=40, context=8, batch_size=2, architecture=architecture)
    study = settings.study_settings(4, "compact")
    owner = np.unique(decoder.owner_of(4, distinct))
    ours = jax.eval_shape(initial(study, build_model(study, 40)), jax.random.key(0), owner.astype(np.int32))
    number = sum(leaf.size for leaf in jax.tree.leaves(ours)) - ours["head"]["embedding"].size  # tied to the input table
    model = torch_decoder.build(decoder.job_of(settings, decoder.Entry("torch", 4, distinct)))
    assert sum(parameter.numel() for parameter in model.parameters()) == number


@pytest.mark.bench
def test_results(tmp_path, capsys):
    pytest.importorskip("torch")
    settings = DecoderBench(
        layers=[4], share=2, width=32, vocab_size=40, context=8, batch_size=2, seconds=0.001, out=str(tmp_path)
    )
    decoder.run(settings, Console())
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["side"], row["distinct"]) for row in rows] == [("ours", 4), ("torch", 4), ("ours", 2), ("torch", 2)]
    for row in rows:
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert (row["over_torch"] is None) is (row["side"] == "torch")
    assert capsys.readouterr().out.splitlines()[-1] == f"results: {tmp_path / 'results.json'}"


def test_rates_become_milliseconds_per_step():
    rates = {decoder.Entry("ours", 4, 2): [1600.0, 3200.0, 1600.0], decoder.Entry("torch", 4, 2): [800.0, 800.0, 1600.0]}
    ours, torch = (decoder.row_of(SETTINGS, entry, rates) for entry in rates)
    assert (ours["median"], ours["min"], ours["max"]) == (10.0, 5.0, 10.0)  # a step has 2 x 8 tokens
    assert ours["over_torch"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert (torch["median"], torch["over_torch"]) == (20.0, None)
