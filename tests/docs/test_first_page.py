"""The code of the first page runs as it is pasted, and its output of a command is what that command prints."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hub_checkpoints import checkpoint, values

from tiejax.lab.commands import check

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "index.md").read_text()


def test_its_code_runs_as_it_is_pasted():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["stored"]["head"] is None
    by_use = jax.grad(names["loss"])(names["params"])
    np.testing.assert_allclose(names["grads"]["embed"], by_use["embed"] + by_use["head"].T, rtol=1e-6)


def test_it_and_the_readme_show_what_check_prints(tmp_path, monkeypatch, capsys):
    (shown,) = re.findall(r"```console\n\$ tiejax check some-model\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    tensors = {"model.embed_tokens.weight": values(seed=0), "lm_head.weight": values(seed=1)}
    checkpoint(Path("some-model"), tensors, {"model_type": "llama", "tie_word_embeddings": True})
    assert check.main(["some-model"]) == 1
    assert capsys.readouterr().out == shown
    assert f" `{shown.splitlines()[0]}`.\n" in (ROOT / "README.md").read_text()
