"""The benchmark of causal language models: rates, ratio, and the share of the rate of products."""

import json

import pytest

from experiments.bench import causal
from experiments.bench.settings import CausalBench
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.causal_untying.model import size_of
from tiejax.lab.studies.causal_untying.plan import Arm

SMALL = CausalBench(layers=1, width=8, heads=2, context=8, batch_size=2, vocab_size=40, seconds=0.01)


def test_products_are_counted_by_hand():
    """One layer 8 wide: 12 x 64 entries, attention over 4 of 8 positions twice, 40 x 8 logits; 6 operations each."""
    assert causal.products_of_token(SMALL) == 6 * (12 * 64 + 2 * 4 * 8 + 40 * 8)


def test_ratio_and_share():
    found = causal.results_of(SMALL, {"ours": [200.0, 300.0], "torch": [100.0, 200.0]}, 6 * 1152 * 1000.0)
    assert found["over_torch"] == {"median": 1.75, "min": 1.5, "max": 2.0}
    assert found["share_of_products"]["ours"]["median"] == pytest.approx(0.25)
    assert causal.lines(found)[-1] == "1.75 x torch (1.50 to 2.00)"


@pytest.mark.parity
def test_both_sides_have_the_same_number_of_parameters():
    """The library's model is tied."""
    torch_decoder = pytest.importorskip("experiments.bench.torch_decoder")
    model = torch_decoder.build(causal.job_of(SMALL, "torch"))
    number = size_of(SMALL.study_settings(), 40, Arm("tied", True)).parameters
    assert sum(parameter.numel() for parameter in model.parameters()) == number


@pytest.mark.bench
def test_results(tmp_path, capsys):
    pytest.importorskip("torch")
    settings = CausalBench(**{**vars(SMALL), "out": str(tmp_path)})
    causal.run(settings, Console())
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["tokens_per_second"]) == {"ours", "torch", "torch-each"}
    assert results["over_torch"]["min"] > 0
    assert capsys.readouterr().out.splitlines()[-1] == f"results: {tmp_path / 'results.json'}"
