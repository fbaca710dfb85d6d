"""Huge pages in real processes: the kernel lists for each part of their memory whether huge pages were requested."""

import dataclasses
import os
from pathlib import Path

import pytest
from processes import end, start_python

from experiments.bench import command
from tiejax.lab.commands.studies import STUDIES
from tiejax.lab.runs import huge_pages
from tiejax.lab.runs.run_directory import RunDirectory

# Allocates 64 MiB and prints the flags that the kernel lists for them; `hg`: huge pages were requested.
LOOK = """
import os, sys
started = os.environ.get("STARTED")
os.environ["STARTED"] = str(os.getpid())
from tiejax.lab.runs import huge_pages
from tiejax.lab.settings.command_line import run_main
if "jax" in sys.argv:
    import jax
if "library" in sys.argv:
    huge_pages.restart()
else:
    try:
        run_main(lambda argv: huge_pages.restart())
    except SystemExit:
        pass
import numpy as np
array = np.ones(2**26, np.uint8)
address, flags = array.ctypes.data, "none"
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0] and not words[0].endswith(":"):
        low, high = (int(word, 16) for word in words[0].split("-"))
        inside = low <= address < high
    elif words[0] == "VmFlags:" and inside:
        flags = words[1:]
print(started == str(os.getpid()), "hg" in flags, *sys.argv[1:])
sys.exit(7)
"""
UNSET = dict.fromkeys(huge_pages.ALLOCATOR)


def look(*argv, env):
    whole = {name: value for name, value in {**os.environ, **UNSET, **env}.items() if value is not None}
    with pytest.MonkeyPatch.context() as patch:
        for name in huge_pages.ALLOCATOR:
            patch.delenv(name, raising=False)
        ended = end(start_python("-c", LOOK, *argv, env=whole))
    assert ended.status == 7, ended.err
    return ended.out.split()


@pytest.mark.skipif(not huge_pages.can_ask(), reason="the kernel does not provide huge pages on request, or this is not glibc")
def test_a_command_restarts_once_and_has_huge_pages():
    """In the same process, with its arguments and exit status."""
    assert look("--one", "two words", env={}) == ["True", "True", "--one", "two", "words"]


@pytest.mark.parametrize("variables", [{"GLIBC_TUNABLES": ""}, {"MALLOC_TOP_PAD_": "0"}])
def test_variables_of_the_allocator_prevent_a_restart(variables):
    assert look("-", env=variables) == ["False", "False", "-"]


@pytest.mark.parametrize("who", ["jax", "library"])
def test_a_process_with_jax_or_without_a_command_is_not_restarted(who):
    assert look(who, env={}) == ["False", "False", who]


@pytest.mark.parametrize(
    ("enabled", "library", "asks"),
    [
        ("always [madvise] never", "glibc 2.36", True),
        ("always [madvise] never", "glibc 2.35", True),
        ("always [madvise] never", "glibc 2.34", False),
        ("[always] madvise never", "glibc 2.36", False),
        ("always madvise [never]", "glibc 2.36", False),
        ("always [madvise] never", "musl 1.2", False),
        ("always [madvise] never", None, False),
        ("always [madvise] never", "glibc 2.x", False),
    ],
)
def test_systems_that_provide_huge_pages_on_request(enabled, library, asks, tmp_path, monkeypatch):
    file = tmp_path / "enabled"
    file.write_text(enabled + "\n")
    monkeypatch.setattr(huge_pages, "ENABLED", file)
    monkeypatch.setattr(os, "confstr", lambda name: library)
    assert huge_pages.can_ask() is asks


def test_a_system_without_huge_pages(monkeypatch):
    monkeypatch.setattr(huge_pages, "ENABLED", Path("/nonexistent"))
    assert huge_pages.can_ask() is False


def test_only_the_text_study_asks():
    """The others are not faster with huge pages (docs/speed.md)."""
    assert [name for name, load in STUDIES.items() if load().huge_pages] == ["text_mlm"]


def test_a_command_asks_before_it_imports_jax():
    """The real command, ended when it would restart."""
    code = """
import sys
from tiejax.lab.runs import huge_pages
def restart():
    print("jax" in sys.modules)
    sys.exit(0)
huge_pages.restart = restart
from tiejax.lab.command import main
main()
"""
    ended = end(start_python("-c", code, "text-mlm", env=dict(os.environ)))
    assert ended.out.split() == ["False"], ended.err


@pytest.mark.parametrize(
    ("argv", "asks"), [(["text"], True), (["text", "--huge_pages", "false"], False), (["encoder"], False), (["layers"], False)]
)
def test_some_benchmarks_ask(argv, asks, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(huge_pages, "restart", lambda: asked.append(True))
    monkeypatch.setattr(RunDirectory, "probe", lambda path: None)
    benchmark = dataclasses.replace(command.BENCHMARKS[argv[0]], run=lambda settings, console: None)
    monkeypatch.setitem(command.BENCHMARKS, argv[0], benchmark)
    assert command.main([*argv, "--out", str(tmp_path)]) == 0
    assert bool(asked) is asks
