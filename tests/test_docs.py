"""The code of the guide to ties runs, in the order of its page, and does what the page says."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import Ensemble

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tying.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def model_loss(params, batch):
    hidden = jnp.tanh(batch @ params["encoder"]["kernel"])
    return jnp.mean(jnp.square(hidden @ params["decoder"]["kernel"] - batch))


def test_the_code_of_the_guide_runs():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "encoder": {"kernel": jax.random.normal(keys[0], (5, 3))},
        "decoder": {"kernel": jax.random.normal(keys[1], (3, 5))},
    }
    names = {"params": params, "model_loss": model_loss, "batch": jax.random.normal(keys[2], (16, 5))}
    for block in BLOCKS:
        # The page leaves out what every ensemble needs.
        exec(block.replace("Ensemble(..., ", "dict("), names)
        if "opt_state = optimizer.init(stored)" in block:
            grads = names["grads"]
            untied = jax.grad(model_loss)(params | {"decoder": {"kernel": params["encoder"]["kernel"].T}}, names["batch"])
            both = untied["encoder"]["kernel"] + untied["decoder"]["kernel"].T
            np.testing.assert_allclose(grads["encoder"]["kernel"], both, rtol=1e-5, atol=1e-7)
            assert grads["decoder"]["kernel"] is None
        if "def step(" in block:
            after, _ = names["step"](names["params"], names["opt_state"], names["batch"], True)
            np.testing.assert_array_equal(after["encoder"]["kernel"].T, after["decoder"]["kernel"])
            names["stored"], names["opt_state"] = names["store"](after, names["ties"]), None
            names["opt_state"] = names["optimizer"].init(names["stored"])
    assert names["owner"].tolist() == [0, 1, 2] * 4
    assert names["reads"].tolist() == [0, 1, 2] * 4
    assert names["after"][4] == 4
    fields = {field.name for field in dataclasses.fields(Ensemble)}
    assert set(names["ensemble"]) <= fields
    assert names["ensemble"]["arm_ties"].shape == (4, 1)


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
