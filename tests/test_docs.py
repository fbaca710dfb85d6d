"""The code of the guide to ties and of the README runs as it is pasted, and does what the pages say."""

import dataclasses
import re
import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import tiejax
from tiejax import lab
from tiejax.lab import Ensemble

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tying.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_code_of_the_guide_runs():
    names: dict[str, Any] = {}
    for block in BLOCKS:
        # The page leaves out the required fields of an ensemble.
        exec(block.replace("Ensemble(..., ", "dict("), names)
        if "opt_state = optimizer.init(stored)" in block:
            grads = names["grads"]
            params = names["params"]
            untied = jax.grad(names["model_loss"])(
                params | {"decoder": {"kernel": params["encoder"]["kernel"].T}}, names["batch"]
            )
            both = untied["encoder"]["kernel"] + untied["decoder"]["kernel"].T
            np.testing.assert_allclose(grads["encoder"]["kernel"], both, rtol=1e-5, atol=1e-7)
            assert grads["decoder"]["kernel"] is None
        if "def step(" in block:
            after = names["full"]
            np.testing.assert_array_equal(after["encoder"]["kernel"].T, after["decoder"]["kernel"])
            assert np.abs(after["encoder"]["kernel"] - params["encoder"]["kernel"]).max() > 1e-4
    assert names["owner"].tolist() == [0, 1, 2] * 4
    assert names["reads"].tolist() == [0, 1, 2] * 4
    assert names["after"][4] == 4
    fields = {field.name for field in dataclasses.fields(Ensemble)}
    assert set(names["ensemble"]) <= fields
    assert names["ensemble"]["arm_ties"].shape == (4, 1)


def linen(target):
    inputs, layers = jnp.arange(4.0), nn.Sequential([nn.Dense(4, bias_init=nn.initializers.ones), nn.Dense(4)])
    params = layers.init(jax.random.key(0), inputs)
    without = nn.Sequential([nn.Dense(4), nn.Dense(4, use_bias=False)])
    stored = tiejax.store(params, tiejax.Tie(f"params/layers_0/{target}", f"params/layers_1/{target}"))
    return lambda: layers.apply(stored, inputs), lambda: without.apply(stored, inputs)


def equinox(target):
    eqx = pytest.importorskip("equinox")
    inputs, layers = jnp.arange(4.0), [eqx.nn.Linear(4, 4, key=jax.random.key(key)) for key in (0, 1)]
    target = {"kernel": "weight"}.get(target, target)
    stored = tiejax.store(layers, tiejax.Tie(f"0/{target}", f"1/{target}"))
    return lambda: stored[1](stored[0](inputs)), lambda: stored[1].weight @ stored[0](inputs)


@pytest.mark.parametrize("library", [linen, pytest.param(equinox, marks=pytest.mark.parity)])
def test_a_model_given_stored_parameters_fails_or_runs_without_a_bias(library):
    """As the guide says."""
    applied, without_bias = library("bias")
    np.testing.assert_allclose(applied(), without_bias(), rtol=1e-6)
    applied, _ = library("kernel")
    with pytest.raises((TypeError, AssertionError)):
        applied()


def test_the_reference_is_current_and_has_every_public_name():
    """`python docs/write_reference.py` updates it."""
    writer = runpy.run_path(str(ROOT / "docs" / "write_reference.py"))
    page = writer["PAGE"].read_text()
    assert page == writer["written"](page)
    names = {f"{module.__name__}.{name}" for module in (tiejax, lab) for name in module.__all__}
    assert names - {"tiejax.__version__"} <= set(re.findall(r"^### (\S+)$", page, re.MULTILINE))
    for name in ("Args:", "Returns:", "Yields:", "Raises:", "Examples:"):
        assert f"\n{name}\n" not in page


def test_the_first_code_of_the_readme_runs_as_it_is_pasted(capsys):
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names = {}
    exec(block, names)
    assert capsys.readouterr().out == "{'embed': {'table': (100, 16)}, 'head': {'kernel': None}}\n"
    table = names["params"]["embed"]["table"]
    by_use = jax.grad(names["loss"])({"embed": {"table": table}, "head": {"kernel": table.T}}, names["tokens"])
    summed = by_use["embed"]["table"] + by_use["head"]["kernel"].T
    np.testing.assert_allclose(names["grads"]["embed"]["table"], summed, rtol=1e-5, atol=1e-8)
