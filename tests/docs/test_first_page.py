"""The code of the first page runs as it is pasted, its output is what a command prints, and its figure is that of a run."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
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
    assert f"```console\n$ tiejax check some-model\n{shown}```" in (ROOT / "docs" / "checkpoints.md").read_text()
    assert f" `{shown.splitlines()[0]}`.\n" in (ROOT / "README.md").read_text()


def test_its_figure_shows_the_differences_of_the_published_run_on_its_axis():
    """Places of dots and bars are read back by the labels of the axis."""
    claims = json.loads((ROOT / "docs" / "results" / "causal_untying_length.json").read_text())["claims"]
    claims = {claim["id"]: claim for claim in claims}
    figure = ElementTree.parse(ROOT / "docs" / "finding.svg").getroot()
    shapes = {tag: list(figure.iter(f"{{http://www.w3.org/2000/svg}}{tag}")) for tag in ("text", "circle", "path")}
    words = {element.text: element for element in shapes["text"]}
    assert "never tied model of the seed (nats a token)" in words
    ticks = [(float(words[tick].get("x")), float(tick)) for tick in ("0", "0.05", "0.1")]
    value_at = np.polynomial.Polynomial.fit(*zip(*ticks, strict=True), deg=1)
    bars = [element for element in shapes["path"] if element.get("stroke-width") == "4"]
    rows = {"always tied": "tied/never", "tied, untied at 2/3": "late/never"}
    for (label, claim), bar in zip(rows.items(), bars, strict=True):
        assert "never-independent)" in claims[claim]["estimand"]  # what is subtracted
        height = float(words[label].get("y"))
        dots = [float(dot.get("cx")) for dot in shapes["circle"] if abs(float(dot.get("cy")) - height) < 10]
        np.testing.assert_allclose(value_at(np.array(dots)), claims[claim]["differences"], atol=1e-4)
        place = float(re.match(r"M(\S+) ", bar.get("d"))[1])
        assert value_at(place) == pytest.approx(claims[claim]["estimate"], abs=1e-4)
        assert f"{claims[claim]['estimate']:.3g}" in words
