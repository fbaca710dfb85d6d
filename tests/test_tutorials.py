"""The tutorials run as they are written, and show what they say."""

import math
import re
import runpy
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from shown import check_shown

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"


def names_after(page, folder, monkeypatch):
    """Run all code of a page, in an empty folder; return what it has named."""
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    return names


def shown(page):
    """Return the lines of output that a page shows."""
    (block,) = re.findall(r"```console\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)
    return block.splitlines()


@pytest.mark.parametrize("page", sorted(path.name for path in FOLDER.glob("*.md")))
def test_every_tutorial_is_run_by_a_test(page):
    assert f'names_after("{page}"' in Path(__file__).read_text()


def test_a_model_of_ones_own(tmp_path, monkeypatch):
    names = names_after("tie_a_model.md", tmp_path, monkeypatch)
    assert names["stored"]["head"]["kernel"] is None
    assert names["tied_loss"] > names["untied_loss"] > 0


@pytest.mark.parity
def test_notebook_is_the_first_tutorial_and_runs(tmp_path):
    """The extra `docs` has what a notebook needs."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    writer = runpy.run_path(str(FOLDER / "notebook.py"))
    stored = nbformat.read(writer["NOTEBOOK"], as_version=4)
    assert stored == writer["notebook"](writer["PAGE"].read_text())
    with warnings.catch_warnings(action="ignore"):  # of the client's own event loop
        ran = nbclient.NotebookClient(stored, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]


def test_save_and_load(tmp_path, monkeypatch):
    names = names_after("save_and_load.md", tmp_path, monkeypatch)
    assert names["restored_ties"] == names["loaded_ties"] == [*names["ties"]]
    for full in (names["restored"], names["full"]):
        assert jax.tree.structure(full) == jax.tree.structure(names["params"])
        np.testing.assert_array_equal(full["embed"]["table"], names["params"]["embed"]["table"])


def test_many_seeds(tmp_path, monkeypatch, capsys):
    names = names_after("many_seeds.md", tmp_path, monkeypatch)
    assert (names["losses"][0, :, 0] != names["losses"][0, :, 1]).all()  # tied from the start
    found = names["found"]
    assert found["n"] == 10
    assert found["estimate"] > 0  # as the page says
    assert found["p"] < 0.05
    *answer, _, last = capsys.readouterr().out.splitlines()
    check_shown(shown("many_seeds.md"), answer)
    assert last == "10"  # the last step, of the callback


@pytest.mark.slow
def test_nnx(tmp_path, monkeypatch):
    names = names_after("nnx.md", tmp_path, monkeypatch)
    assert names["loss"] < math.log(20)  # of a guess
    assert names["optimizer"].step[...] == 102
    initial = names["nnx"].state(names["Model"](names["nnx"].Rngs(0)), names["nnx"].BatchStat)
    for state in (names["nnx"].state(names["model"]), names["rest"]):
        assert (state["norm"]["mean"][...] != initial["norm"]["mean"][...]).all()


@pytest.mark.slow
def test_own_model(tmp_path, monkeypatch, capsys):
    names = names_after("own_model.md", tmp_path, monkeypatch)
    outcome = names["outcome"]
    (answer,) = shown("own_model.md")
    check_shown([answer.removesuffix(" ...")], [outcome.sentence.partition(" Untie-2/3")[0]])
    assert len(outcome.claims) == 3
    assert all("equivalence" in claim for claim in outcome.claims)
    assert outcome.report.is_file()
    assert (outcome.losses[:, :, -1] < math.log(128)).all()  # of a guess


@pytest.mark.parity
def test_equinox(tmp_path, monkeypatch):
    names = names_after("equinox.md", tmp_path, monkeypatch)
    assert names["loss"] < math.log(20)  # of a guess
    assert names["grads"].head.weight is None
    initial = names["eqx"].nn.make_with_state(names["make"])(names["keys"])[1]
    assert not names["eqx"].tree_equal(names["state"], initial)


@pytest.mark.parity
def test_untie_later(tmp_path, monkeypatch):
    """Both models have two tables that differ at the end, learnt more than a guess, and counted all steps in every moment."""
    names = names_after("untie_later.md", tmp_path, monkeypatch)
    gpt, model = names["gpt"], names["model"]
    assert (gpt.head.kernel[...] != gpt.embed.embedding[...].T).all()
    assert (model.embed.weight != model.head.weight).all()
    for value, state in (("value", names["gpt_optimizer"].opt_state), ("eqx_value", names["opt_state"])):
        assert names[value] < math.log(50)
        assert state[0].count[...] == 90


@pytest.mark.parity
def test_haiku(tmp_path, monkeypatch):
    names = names_after("haiku.md", tmp_path, monkeypatch)
    assert names["loss"] < math.log(20)  # of a guess
    assert names["grads"]["head"]["w"] is None
    means = [leaf for leaf in jax.tree.leaves(names["state"]) if leaf.shape]
    assert all((mean != 0).any() for mean in means)


@pytest.mark.slow
def test_a_checkpoint(tmp_path, monkeypatch, capsys):
    names = names_after("read_a_checkpoint.md", tmp_path, monkeypatch)
    assert names["found"]["alignment"]["identity"] > 0.9
    check_shown(shown("read_a_checkpoint.md"), capsys.readouterr().out.splitlines())
