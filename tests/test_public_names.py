"""The public names of `tiejax`, and the former names that still work."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tiejax
from tiejax import _lazy

ROOT = Path(__file__).parents[1]

# Names that the documentation of version 0.5 gave, and that have moved since.
FORMER = [
    ("tiejax.hub.weights", "load"),
    ("tiejax.hub.weights", "save"),
    ("tiejax.hub.weights", "Loaded"),
    ("tiejax.hub.errors", "CheckpointError"),
    ("tiejax.studies.diagnosis.library", "diagnose"),
]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_the_version_is_that_of_pyproject():
    assert tiejax.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_every_public_name_can_be_imported():
    assert {"Tie", "symmetrise", "clip_by_global_norm", "__version__"} <= set(tiejax.__all__)
    assert set(tiejax.__all__) <= set(dir(tiejax))
    for name in tiejax.__all__:
        assert getattr(tiejax, name) is not None


@pytest.mark.parametrize(("module", "name"), FORMER)
def test_former_names_give_the_same_object_and_one_warning(module, name):
    """In a separate process each, since a module is imported once."""
    old = next(old for old in _lazy.MOVED if module.startswith(f"{old}."))
    moved = module.replace(old, _lazy.MOVED[old], 1)
    ended = run_python(
        f"from {module} import {name}; import importlib; assert importlib.import_module({moved!r}).{name} is {name}"
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    warning = f"{old} has moved to {_lazy.MOVED[old]}; the former name goes in 0.8"
    assert ended.stderr == f"<string>:1: DeprecationWarning: {warning}\n"


def test_a_module_keeps_its_own_spec_when_it_is_imported_by_a_former_name():
    with pytest.warns(DeprecationWarning, match=r"tiejax\.hub has moved"):
        former = importlib.import_module("tiejax.hub.errors")
    assert former.__spec__.name == former.__name__ == "tiejax.checkpoints.hub.errors"


def test_a_name_whose_dependency_is_missing_names_the_extra():
    code = """
import sys
sys.modules["optax"] = None  # as if it were not installed
from tiejax import Tie
from tiejax import Ensemble
"""
    ended = run_python(code)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: tiejax.Ensemble needs the extra `lab`: pip install 'tiejax[lab]' (optax is not installed)"
    )


def test_an_error_within_tiejax_is_not_taken_for_a_missing_extra():
    with pytest.raises(ModuleNotFoundError, match=r"tiejax\.none"):
        _lazy.needs(ModuleNotFoundError("No module named 'tiejax.none'", name="tiejax.none"))


def test_the_command_without_its_extra_is_one_line():
    code = "import sys; sys.modules['jsonargparse'] = None; from tiejax.__main__ import main; main()"
    ended = run_python(code)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "tiejax: error: the command needs the extra `lab`: pip install 'tiejax[lab]' (jsonargparse is not installed)\n"
    )
