"""`tiejax NAME`: the doors of `experiments/` by name."""

import subprocess
import sys

import pytest
from processes import EXPERIMENTS

from tiejax.lab.command import COMMANDS, overview


def tiejax(*argv, module="tiejax"):
    ended = subprocess.run([sys.executable, "-m", module, *argv], capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout, ended.stderr


def test_every_door_has_a_name():
    doors = {path.stem.replace("_", "-") for path in EXPERIMENTS.glob("*.py")}
    assert doors == set(COMMANDS) - {"check", "tie", "untie", "factorise", "compare", "runs"}


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]], ids=str)
def test_help_has_a_line_for_each(argv):
    status, out, err = tiejax(*argv)
    assert (status, err) == (0, "")
    assert out == overview() + "\n"
    for name, command in COMMANDS.items():
        assert any(line.split(maxsplit=1) == [name, command.help] for line in out.splitlines())


def test_a_name_that_there_is_not():
    status, out, err = tiejax("exro", "--seeds", "2")
    assert (status, out) == (2, "")
    assert err.startswith("tiejax: error: unknown command 'exro'; did you mean 'exor'?; commands: exor, untying, text-mlm")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])
def test_a_command_calls_itself_by_its_name(name):
    status, out, _ = tiejax(name, "--help")
    assert status == 0
    assert out.startswith(f"usage: tiejax {name} ")
    assert f"Example: tiejax {name}" in " ".join(out.split())
    assert "PROGRAM" not in out
    status, _, err = tiejax(name, "--no_such_option", "1")
    assert status == 2
    assert err.startswith(f"tiejax {name}: error: ")


@pytest.mark.parametrize("argv", [["runs"], ["diagnose"], ["bench", "targets", "--compare"]], ids=lambda argv: argv[0])
def test_a_name_too_long_for_a_file_is_bad_input(argv):
    """The system refuses it wherever it is looked at first, and so it is told by one rule."""
    status, _, err = tiejax(*argv, "a" * 300)
    assert status == 2
    assert err.startswith(f"tiejax {argv[0]}: error: {'a' * 60}...: the name is too long for a file; give")
    assert len(err.splitlines()) == 1


def test_an_option_that_there_is_not_is_not_taken_for_what_has_no_flag():
    status, _, err = tiejax("untie", "folder", "--out", "other")
    assert (status, err) == (2, "tiejax untie: error: unknown option '--out'\n")


def test_a_command_may_be_written_as_its_script():
    status, out, _ = tiejax("text_mlm", "--help")
    assert status == 0
    assert out.startswith("usage: tiejax text-mlm ")


def test_a_benchmark_by_name():
    status, out, _ = tiejax("bench", "exor", "--help")
    assert status == 0
    assert "Example: tiejax bench exor" in " ".join(out.split())


def test_the_version():
    status, out, _ = tiejax("--version")
    assert status == 0
    assert out.startswith("tiejax 0.")
