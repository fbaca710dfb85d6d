"""The benchmark of layer tying, at a tiny size: the measured forms, and the results on disk."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench import layers
from experiments.bench.settings import LayersBench
from tiejax import tying
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.layer_tying import model
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import counts

SETTINGS = LayersBench(layers=[3], share=3, width=32, vocab_size=40, context=8, batch_size=2, repeats=5, seconds=0.001)


@pytest.mark.bench
def test_results(tmp_path, capsys):
    settings = dataclasses.replace(SETTINGS, layers=[4], share=2, out=str(tmp_path))
    layers.run(settings, Console())
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {"benchmark", "config", "devices", "platform", "cpus", "jax", "rows", "changes"}
    assert (results["benchmark"], results["config"]) == ("layers", dataclasses.asdict(settings))
    named = {(row["layers"], row["form"]): row for row in results["rows"]}
    assert list(named) == [(4, form) for form in (
        "untied, no owners", "untied", "2 distinct, compact", "2 distinct, compact, rank 4", "2 distinct, full"
    )]  # fmt: skip
    for row in named.values():
        assert set(row) == {
            *("layers", "form", "median", "min", "max", "over_untied", "over_tied"),
            *("parameters", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "peak_bytes", "move_bytes"),
            "resident_bytes",
        }
        assert 0 < row["min"] <= row["median"] <= row["max"]
    bytes_of = {form: row["parameter_bytes"] for (_, form), row in named.items()}
    assert bytes_of["untied"] == bytes_of["untied, no owners"] == bytes_of["2 distinct, full"]
    assert bytes_of["untied"] > bytes_of["2 distinct, compact"]
    assert bytes_of["2 distinct, compact, rank 4"] - bytes_of["2 distinct, compact"] == 4 * counts.lora(4, 32, 128, 4)
    assert named[4, "untied"]["over_untied"] == named[4, "2 distinct, compact"]["over_tied"] == 1
    for change in results["changes"]:
        assert set(change) == {"layers", "first_visit_compile_s", "compilations_later", "median", "min", "max"}
        assert change["compilations_later"] == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"results: {tmp_path / 'results.json'}"


@pytest.mark.slow
def test_loss_without_owners_equals_the_loss_of_the_study():
    """Untied, the hand-written scan and the study's model have the same loss and the same gradients."""
    settings = SETTINGS.study_settings(3, "compact")
    network = model.build_model(settings, settings.vocab_size)
    params = jax.jit(model.initial(settings, network))(jax.random.key(0), jnp.arange(3))
    tokens = np.random.default_rng(0).integers(0, settings.vocab_size, (2, settings.context)).astype(np.uint16)
    batch = BlockBatch(jnp.asarray(tokens), jnp.ones(2, jnp.float32), jax.random.key(0))
    by_study = model.make_loss(settings, network, settings.vocab_size, 0)
    reads, sends = jnp.asarray(tying.independent(3)), jnp.ones(3, bool)
    (value, grads), (expected, expected_grads) = (
        jax.jit(jax.value_and_grad(lambda params, loss=loss: loss(params, batch, None, reads, sends)))(params)
        for loss in (layers.without_owners(settings), by_study)
    )
    assert value == pytest.approx(float(expected), rel=1e-6)
    for grad, other in zip(*map(jax.tree.leaves, (grads, expected_grads)), strict=True):
        assert np.any(other)
        np.testing.assert_allclose(grad, other, atol=1e-6)


@pytest.mark.bench
def test_measured_changes_restore_the_ties():
    form = layers.form_makers(SETTINGS, 3)["1 distinct, compact"]()
    assert form.owner.tolist() == [0, 0, 0]
    change = layers.measure_changes(SETTINGS, 3, form)
    assert form.owner.tolist() == [0, 0, 0]
    assert set(form.layered.sizes) == {1, 2}
    assert change["compilations_later"] == 0
    assert change["first_visit_compile_s"] > 0
