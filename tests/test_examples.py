"""Each script of docs/examples runs as its first line says, does what it prints, and prints what the page of examples shows."""

import json
import math
import re
import runpy
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from processes import end, start, start_python
from shown import check_shown, words

FOLDER = Path(__file__).parents[1] / "docs" / "examples"
COMPARISONS = ("gpt_equinox", "gpt_nnx", "masked_lm_linen")
TABLES = (256 * 48, 257 * 48)  # a row of 48 numbers for each byte, and for the mask
PAGE = (FOLDER / "README.md").read_text()
FLAGS = ("--seeds", "2", "--steps", "12", "--rates", "[0.002]", "--table_factors", "[1]")


def names_after(script):
    """Run a script in this process; return what it has named."""
    return runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")


def shown(script):
    """Return the lines that the page shows below the command."""
    (block,) = re.findall(rf"^    python {script}\.py\b[^`]*```console\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    return block.splitlines()


def check(script, printed):
    """The page shows the last lines of the output."""
    lines = shown(script)
    check_shown(lines, printed.splitlines()[-len(lines) :])


def test_every_example_is_run_by_a_test_and_listed():
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    tests = Path(__file__).read_text()
    assert {script for script in scripts if f'names_after("{script}")' not in tests} == set(COMPARISONS)
    assert [script for script in scripts if f"[{script}.py]({script}.py)" not in PAGE] == []
    assert [script for script in scripts - set(COMPARISONS) if f'check("{script}", ' not in tests] == []


@pytest.mark.slow
@pytest.mark.parametrize("script", COMPARISONS)
def test_a_comparison_runs_and_learns(script, tmp_path):
    """On four letters, where models begin at log(256) nats a byte; one table of parameters lies between the arms."""
    letters = np.random.default_rng(0).choice(np.frombuffer(b"aeio", np.uint8), 30_000)
    (tmp_path / "text.txt").write_bytes(letters.tobytes())
    path, flags = FOLDER / f"{script}.py", (*FLAGS, "--out", "run")
    drawn = script == COMPARISONS[0]  # one draws its figures: other tests of comparisons leave them blank
    ended = end(start_python(path, *flags, cwd=tmp_path) if drawn else start(*flags, script=path, cwd=tmp_path))
    assert ended.status == 0, ended.err
    if script == "gpt_nnx":
        assert words(ended.out.splitlines()[-1]).startswith(words(shown(script)[-1].removesuffix("...")))
    assert not drawn or all(path.stat().st_size > 1000 for path in (tmp_path / "run" / "figures").iterdir())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    parameters = {arm: cost["parameters"] for arm, cost in results["costs"].items()}
    assert parameters["untied"] - parameters["tied"] in TABLES
    assert parameters["untie-2/3"] == parameters["untied"]
    for arm in parameters:
        losses = results["arms"][arm]["loss"]
        assert len(losses) == 2
        assert all(math.log(4) < loss < 0.95 * math.log(256) for loss in losses), (arm, losses)


@pytest.mark.slow
def test_tie_nnx_gpt(capsys):
    names = names_after("tie_nnx_gpt")
    printed = capsys.readouterr().out
    assert printed.startswith("parameters: 34,688 untied, 30,592 tied\n")  # 128 * 32 fewer
    check("tie_nnx_gpt", printed)
    assert names["loss"] < 0.75 * math.log(128)  # of a guess
    assert type(names["model"]) is names["GPT"]
    moments = names["optimizer"].opt_state[0].mu
    assert moments["head"]["kernel"][...].shape == (32, 128)
    assert len(jax.tree.leaves(moments)) == len(jax.tree.leaves(nnx.state(names["model"], nnx.Param)))


@pytest.mark.slow
def test_untie_at_two_thirds(capsys):
    names = names_after("untie_at_two_thirds")
    printed = capsys.readouterr().out
    check("untie_at_two_thirds", printed)
    lines = printed.splitlines()
    assert [line.split()[2] for line in lines[:-1]] == ["7,168"] * 4 + ["11,264"] * 2  # tied until step 400
    assert names["loss"] < 0.6 * math.log(128)
    stored, state = names["stored"], names["opt_state"][0]
    distance = np.linalg.norm(stored["embed"] - stored["head"]) / np.linalg.norm(stored["embed"])
    assert 0 < distance < 1
    assert lines[-1] == f"the tables now differ by {distance:.0%} of their norm"
    assert state.count == names["STEPS"]
    assert state.mu["head"].shape == (128, 32)


@pytest.mark.slow
def test_check_and_repair(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = names_after("check_and_repair")
    assert (names["before"].answer, names["after"].answer) == ("disagrees", "agrees")
    assert json.loads((names["repaired"] / "config.json").read_text())["tie_word_embeddings"] is False
    weights = [(names[folder] / "model.safetensors").read_bytes() for folder in ("folder", "repaired")]
    assert weights[0][-names["head"].nbytes :] == weights[1][-names["head"].nbytes :]
    check("check_and_repair", capsys.readouterr().out)


@pytest.mark.slow
def test_ensemble_of_seeds(capsys):
    names = names_after("ensemble_of_seeds")
    losses = names["losses"]
    assert losses.shape == (7, 8, 3)
    untied, later, tied = losses[..., 0], losses[..., 1], losses[..., 2]
    np.testing.assert_allclose(later[:5], tied[:5], rtol=1e-6)  # one model until step 200
    assert (later[5:] != tied[5:]).all()
    assert (untied[1] != tied[1]).all()
    assert (losses[-1] < 0.75 * math.log(128)).all()
    assert names["row"]["estimate"] == pytest.approx((tied - untied)[-1].mean(), rel=1e-5)
    assert names["row"]["verdict"] == "supported"
    check("ensemble_of_seeds", capsys.readouterr().out)
