"""The cache of compiled programs, which affects no result."""

import os
import stat
import sys

import numpy as np
import pytest
from processes import end, start

from tiejax.lab.runs import compiled

TINY = ["--seeds", "1", "--steps", "20", "--bits", "3", "--record_every", "10", "--exact_every", "10", "--half_period", "10"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache directory of the user, separate from that of the tests."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.delitem(sys.modules, "jax")  # whose configuration would change too
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_set_in_the_environment(home, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    compiled.use()
    folder = home / "tiejax" / "compiled" / compiled.processor()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert folder.is_dir()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = "elsewhere"
    compiled.use()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def test_an_incomplete_program_is_removed(home, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    folder = home / "tiejax" / "compiled" / compiled.processor()
    folder.mkdir(parents=True)
    for name in ("one-cache", "two-cache", "two-atime"):
        (folder / name).write_text("x")
    compiled.use()
    assert sorted(path.name for path in folder.iterdir()) == ["two-atime", "two-cache"]


def test_recompile_does_not_use_the_cache(home, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    compiled.use(recompile=True)
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert not home.exists()


def test_a_folder_that_cannot_be_made_is_not_used(home, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    home.write_text("a file")
    compiled.use()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


@pytest.mark.slow
def test_results_are_the_same_with_a_full_a_damaged_and_no_cache(home, tmp_path):
    losses = []
    for number, switches in enumerate(([], ["--recompile"], [])):
        if number == 2:
            for entry in home.rglob("*-cache"):
                entry.write_bytes(entry.read_bytes()[:100])
        kept = {entry: entry.stat()[stat.ST_MTIME] for entry in home.rglob("*-cache")}
        out = tmp_path / f"run{number}"
        ended = end(start(*TINY, *switches, "--quiet", "--out", out))
        assert (ended.status, ended.err) == (0, "")
        with np.load(out / "metrics.npz") as metrics:
            losses.append(metrics["train_loss"])
        if switches:
            assert {entry: entry.stat()[stat.ST_MTIME] for entry in home.rglob("*-cache")} == kept
    assert kept
    for other in losses[1:]:
        np.testing.assert_array_equal(losses[0], other)
