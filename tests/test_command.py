"""The command `tiejax NAME`."""

import contextlib
import os
import subprocess
import sys

import pytest
from processes import EXPERIMENTS

from tiejax.lab.command import COMMANDS, overview, start
from tiejax.lab.settings.command_line import BadInput


def tiejax(*argv, module="tiejax"):
    ended = subprocess.run([sys.executable, "-m", module, *argv], capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout, ended.stderr


def test_every_script_is_a_command():
    scripts = {path.stem.replace("_", "-") for path in EXPERIMENTS.glob("*.py")} - {
        "error-rates",
        "bench",
    }  # simulations for the docs
    assert scripts == set(COMMANDS) - {"check", "tie", "untie", "factorise", "share", "compare", "runs", "join"}


def here(argv, monkeypatch, capsys):
    """Run `tiejax` in this process; return what it printed."""
    monkeypatch.setattr(sys, "argv", ["tiejax"])
    with contextlib.suppress(SystemExit):
        assert start(argv) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"], ["--help-all"]], ids=str)
def test_help_lists_each_command(argv, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert here(argv, monkeypatch, capsys) == overview(80) + "\n"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_fits_the_terminal_without_cutting_words(columns):
    out = overview(columns)
    assert max(map(len, out.splitlines())) <= columns
    words = " ".join(out.split())
    for name, text in COMMANDS.items():
        assert f" {name} {text} " in words


def test_help_in_a_process():
    status, out, err = tiejax("help")
    assert (status, err) == (0, "")
    assert out == overview(int(os.environ.get("COLUMNS", 80))) + "\n"


@pytest.mark.parametrize("more", [[], ["--help-all"]], ids=str)
def test_help_of_a_command(more, monkeypatch, capsys):
    """`tiejax help NAME` prints what `tiejax NAME --help` prints, and likewise for all options."""
    assert here(["help", "text_mlm", *more], monkeypatch, capsys) == here(["text-mlm", *(more or ["-h"])], monkeypatch, capsys)


def test_help_of_an_unknown_command():
    with pytest.raises(BadInput, match=r"^unknown command 'exro'; did you mean 'exor'\?$"):
        start(["help", "exro"])


def test_unknown_command():
    status, out, err = tiejax("exro", "--seeds", "2")
    assert (status, out) == (2, "")
    assert err == "tiejax: error: unknown command 'exro'; did you mean 'exor'?\n"
    _, _, err = tiejax("x" * 100)
    assert err.startswith(f"tiejax: error: unknown command '{'x' * 77}...'; expected one of exor, untying, text-mlm, ")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_messages_of_a_command_start_with_its_name(name):
    status, out, _ = tiejax(name, "--help")
    assert status == 0
    assert out.startswith(f"usage: tiejax {name} ")
    assert f"Example: tiejax {name}" in " ".join(out.split())
    assert "PROGRAM" not in out
    status, _, err = tiejax(name, "--no_such_option", "1")
    assert status == 2
    assert err.startswith(f"tiejax {name}: error: ")


@pytest.mark.parametrize("argv", [["runs"], ["diagnose"]], ids=lambda argv: argv[0])
def test_a_file_name_that_is_too_long_is_bad_input(argv):
    """Whichever system call fails first; from version 3.14 on, Python's `Path.exists` takes such a file for a missing one."""
    status, _, err = tiejax(*argv, "a" * 300)
    assert status == 2
    cut = f"{'a' * 77}..."
    missing = {"runs": f"{cut}: not found"} if sys.version_info >= (3, 14) else {}
    said = missing.get(argv[0], f"{cut}: file name too long; use a shorter one")
    assert err.startswith(f"tiejax {argv[0]}: error: {said}")
    assert len(err.splitlines()) == 1


def test_unknown_option_of_a_command_with_positional_arguments():
    status, _, err = tiejax("untie", "folder", "--out", "other")
    assert (status, err) == (2, "tiejax untie: error: unknown option '--out'\n")


def test_a_command_can_be_spelled_like_its_script():
    status, out, _ = tiejax("text_mlm", "--help")
    assert status == 0
    assert out.startswith("usage: tiejax text-mlm ")


@pytest.mark.parametrize("argv", [["--version"], ["-V"]], ids=str)
def test_version(argv, monkeypatch, capsys):
    assert here(argv, monkeypatch, capsys).startswith("tiejax 0.")
