"""The public names of `tiejax`."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tiejax
from tiejax import _lazy, lab, nnx

ROOT = Path(__file__).parents[1]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_the_version_is_that_of_pyproject():
    assert tiejax.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_every_public_name_can_be_imported():
    assert {"Tie", "Scale", "check_leafwise", "untie_switched", "__version__"} <= set(tiejax.__all__)
    assert set(tiejax.__all__) <= set(dir(tiejax))
    for name in tiejax.__all__:
        assert getattr(tiejax, name) is not None


def test_a_function_is_not_hidden_by_the_module_of_its_name():
    """As `tiejax.tying.untie`, whose module is loaded by the name at the top first."""
    code = """
from tiejax import *
from tiejax import tying
modules = {name for name in tying.__all__ if type(getattr(tying, name)) is type(tying)}
assert not modules, modules
"""
    ended = run_python(code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_reference_lists_what_is_public_and_nothing_private():
    """As docs/stability.md says."""
    pages = [*(ROOT / "docs").glob("reference*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    listed = {name for page in pages for name in re.findall(r"^### (tiejax\.\S+)$", page.read_text(), re.MULTILINE)}
    public = {module.__name__: module.__all__ for module in (tiejax, lab, nnx)}
    assert {f"{module}.{name}" for module, names in public.items() for name in names} - {"tiejax.__version__"} <= listed
    for module, name in (path.rsplit(".", 1) for path in listed):
        assert not name.startswith("_")
        if module in ("tiejax.tying", "tiejax.training", "tiejax.models"):
            assert name in importlib.import_module(module).__all__


WITHOUT_LAB = """
import pydoc
import sys
sys.modules["optax"] = None  # as if it were not installed
import tiejax
from tiejax import *
assert {name for name in tiejax.__all__ if name in globals()} == set(tiejax.__all__) <= set(dir(tiejax))
assert "clip_by_global_norm(" in pydoc.plain(pydoc.render_doc("tiejax")) and pydoc.render_doc("tiejax.lab")
from tiejax import lab
assert not hasattr(lab, "Ensemble") and not hasattr(lab, "none")
try:
    lab.Ensemble
except AttributeError as error:
    print(error)
try:
    from tiejax.lab import Ensemble
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_the_lab_its_names_are_missing_and_name_the_extra():
    ended = run_python(WITHOUT_LAB)
    missing = "tiejax.lab.Ensemble needs the extra `lab`: pip install 'tiejax[lab]' (optax is not installed)"
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [missing] * 2


MODULE_WITHOUT_LAB = """
import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder


class WithoutSome(PathFinder):  # as if these packages were not installed
    @classmethod
    def find_spec(cls, name, *where):
        return None if name in ("scipy", "optax", "tensorflow_datasets") else super().find_spec(name, *where)


sys.meta_path[:] = [WithoutSome if finder is PathFinder else finder for finder in sys.meta_path]
for module in ("tiejax.statistics.power", "tiejax.training.optimizer", "tiejax.text.data_sets", "optax"):
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(f"{error} [{error.name}]")
from tiejax.tying import Tie
assert importlib.util.find_spec("optax") is None
"""


def test_modules_whose_dependency_is_missing_name_the_extra():
    ended = run_python(MODULE_WITHOUT_LAB)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "tiejax.statistics.power needs the extra `lab`: pip install 'tiejax[lab]' (scipy is not installed) [scipy]",
        "tiejax.training.optimizer needs the extra `lab`: pip install 'tiejax[lab]' (optax is not installed) [optax]",
        "tiejax.text.data_sets needs the extra `tfds`: pip install 'tiejax[tfds]' (tensorflow_datasets is not installed) "
        "[tensorflow_datasets]",
        "No module named 'optax' [optax]",
    ]


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
