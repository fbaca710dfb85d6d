"""The public names of `tiejax`, and the former names that still work."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tiejax
from tiejax import _lazy, lab, nnx
from tiejax.tying.tie import FORMER_SOURCE

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


@pytest.mark.parametrize("former", _lazy.MOVED_NAMES)
def test_former_names_warn_where_they_are_used_and_say_when_they_go(former):
    (package, name), (new_package, new_name) = (path.rsplit(".", 1) for path in (former, _lazy.MOVED_NAMES[former]))
    module = importlib.import_module(package)
    expected = rf"^{re.escape(former)} is now {re.escape(_lazy.MOVED_NAMES[former])}; the former name goes in 0\.8$"
    with pytest.warns(DeprecationWarning, match=expected) as caught:
        found = getattr(module, name)
    assert [warning.filename for warning in caught] == [__file__]
    assert found is getattr(importlib.import_module(new_package), new_name)
    assert name not in module.__all__


def test_the_former_value_of_a_gradient_warns():
    """In a process of its own, where the types of arguments are not checked."""
    ended = run_python("from tiejax import Tie; print(Tie('a', 'b', gradient='owner') == Tie('a', 'b', gradient='source'))")
    assert (ended.returncode, ended.stdout) == (0, "True\n")
    assert ended.stderr.splitlines()[0] == (  # Python 3.13 shows the line of code as well
        "<string>:1: DeprecationWarning: gradient='owner' of a Tie is now 'source'; the former value goes in 0.8"
    )


def test_no_former_name_outlives_its_version():
    """In the version `GONE_IN`, empty `_lazy.MOVED_NAMES`, remove `tying.tie.FORMER_SOURCE`, and name a later version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    present, gone = (tuple(map(int, version.split(".")[:2])) for version in (project["version"], _lazy.GONE_IN))
    assert present < gone


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


def test_the_page_on_stability_lists_every_deprecated_name():
    page = (ROOT / "docs" / "stability.md").read_text()
    rows = re.findall(r"^\| (`tiejax.*|`Tie.*) \| .+ \| (\S+?)(?:;.*)? \|$", page, re.MULTILINE)
    assert [goes for _, goes in rows] == [_lazy.GONE_IN] * 3
    former = {name for names, _ in rows for name in re.findall(r"`([^`]+)`", names)}
    assert former == {*_lazy.MOVED_NAMES, f'Tie(gradient="{FORMER_SOURCE}")'}


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
