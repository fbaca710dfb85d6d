"""The benchmark of layer tying, at a size of no meaning: what it measures, and what it leaves on disk."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from tiejax.bench import layers
from tiejax.bench.settings import LayersBench
from tiejax.runs.console import Console

SETTINGS = LayersBench(layers=[3], share=3, width=32, vocab_size=40, context=8, batch_size=2, repeats=5, seconds=0.001)


@pytest.mark.slow
def test_results(tmp_path, capsys):
    settings = dataclasses.replace(SETTINGS, layers=[2, 4], share=2, out=str(tmp_path))
    layers.run(settings, Console())
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {"benchmark", "config", "devices", "platform", "cpus", "jax", "rows", "changes"}
    assert (results["benchmark"], results["config"]) == ("layers", dataclasses.asdict(settings))
    named = {(row["layers"], row["form"]): row for row in results["rows"]}
    assert list(named) == [
        *((2, form) for form in ("untied, no owners", "untied", "1 distinct, compact", "1 distinct, full")),
        *((4, form) for form in ("untied, no owners", "untied", "2 distinct, compact", "2 distinct, full")),
    ]
    for row in named.values():
        assert set(row) == {
            *("layers", "form", "median", "min", "max", "over_untied"),
            *("parameters", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "peak_bytes", "move_bytes"),
        }
        assert 0 < row["min"] <= row["median"] <= row["max"]
    for height, distinct in ((2, 1), (4, 2)):
        bytes_of = {form: row["parameter_bytes"] for (number, form), row in named.items() if number == height}
        assert bytes_of["untied"] == bytes_of["untied, no owners"] == bytes_of[f"{distinct} distinct, full"]
        assert bytes_of["untied"] > bytes_of[f"{distinct} distinct, compact"]
        assert named[height, "untied"]["over_untied"] == 1
    for change in results["changes"]:
        assert set(change) == {"layers", "first_visit_compile_s", "compilations_later", "median", "min", "max"}
        assert change["compilations_later"] == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"results: {tmp_path / 'results.json'}"


def test_the_loss_without_owners_is_the_loss_of_the_study():
    """Untied, on the same batch from the same start, the hand-written scan and the study's model take the same step."""
    forms = layers.make_forms(SETTINGS, 3)
    for name in ("untied, no owners", "untied"):
        forms[name].seconds_per_step(2)
    by_hand, study = (forms[name]._state.params for name in ("untied, no owners", "untied"))
    start = forms["1 distinct, full"]._state.params
    for first, second, before in zip(*map(jax.tree.leaves, (by_hand, study, start)), strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)
        assert np.any(np.asarray(first) != np.asarray(before))


def test_a_change_of_ties_and_back_leaves_the_ties():
    form = layers.make_forms(SETTINGS, 3)["1 distinct, compact"]
    assert form.owner.tolist() == [0, 0, 0]
    change = layers.measure_changes(SETTINGS, 3, form)
    assert form.owner.tolist() == [0, 0, 0]
    assert set(form.layered.sizes) == {1, 2}
    assert change["compilations_later"] == 0
    assert change["first_visit_compile_s"] > 0
