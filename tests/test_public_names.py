"""The public names of `tiejax`, and the former names that still work."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tiejax
from tiejax import _lazy, lab

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


@pytest.mark.parametrize("name", [name.removeprefix("tiejax.") for name in _lazy.MOVED_NAMES])
def test_names_that_have_left_the_top_warn_where_they_are_used(name):
    with pytest.warns(
        DeprecationWarning, match=rf"^tiejax\.{name} has moved to tiejax\.lab\.{name}; .* goes in 0\.8$"
    ) as caught:
        found = getattr(tiejax, name)
    assert [warning.filename for warning in caught] == [__file__]
    assert found is getattr(lab, name)
    assert name not in tiejax.__all__


WITHOUT_LAB = """
import pydoc
import sys
sys.modules["optax"] = None  # as if it were not installed
import tiejax
from tiejax import *
assert {name for name in tiejax.__all__ if name in globals()} == set(tiejax.__all__) <= set(dir(tiejax))
assert "clip_by_global_norm(" in pydoc.plain(pydoc.render_doc("tiejax")) and pydoc.render_doc("tiejax.lab")
from tiejax import lab
for module in (tiejax, lab):
    assert not hasattr(module, "Ensemble") and not hasattr(module, "none")
    try:
        module.Ensemble
    except AttributeError as error:
        print(error)
    try:
        exec(f"from {module.__name__} import Ensemble")
    except ModuleNotFoundError as error:
        print(error)
"""


def test_without_the_lab_its_names_are_missing_and_name_the_extra():
    ended = run_python(WITHOUT_LAB)
    missing = "tiejax.lab.Ensemble needs the extra `lab`: pip install 'tiejax[lab]' (optax is not installed)"
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [missing] * 4


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
