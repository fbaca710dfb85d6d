"""Huge pages, asked of real processes: the kernel says of each part of their memory whether it was asked for."""

import dataclasses
import os
from pathlib import Path

import pytest
from processes import end, start_python

from experiments.bench import command
from tiejax.lab.commands.studies import STUDIES
from tiejax.lab.runs import huge_pages
from tiejax.lab.runs.run_directory import RunDirectory

# Allocates 64 MiB and prints what the kernel says of them; `hg`: huge pages are asked for.
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
NOT_SAID = dict.fromkeys(huge_pages.ALLOCATOR)


def look(*argv, env):
    whole = {name: value for name, value in {**os.environ, **NOT_SAID, **env}.items() if value is not None}
    with pytest.MonkeyPatch.context() as patch:
        for name in huge_pages.ALLOCATOR:
            patch.delenv(name, raising=False)
        ended = end(start_python("-c", LOOK, *argv, env=whole))
    assert ended.status == 7, ended.err
    return ended.out.split()


@pytest.mark.skipif(not huge_pages.can_ask(), reason="the kernel does not wait to be asked, or this is not glibc")
def test_a_command_starts_anew_once_and_has_huge_pages():
    """The same process, its arguments and its exit status are kept."""
    assert look("--one", "two words", env={}) == ["True", "True", "--one", "two", "words"]


@pytest.mark.parametrize("said", [{"GLIBC_TUNABLES": ""}, {"MALLOC_TOP_PAD_": "0"}])
def test_who_has_said_how_memory_is_allocated_keeps_it(said):
    assert look("-", env=said) == ["False", "False", "-"]


@pytest.mark.parametrize("who", ["jax", "library"])
def test_who_has_imported_jax_or_is_no_command_stays(who):
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
def test_where_asking_helps(enabled, library, asks, tmp_path, monkeypatch):
    file = tmp_path / "enabled"
    file.write_text(enabled + "\n")
    monkeypatch.setattr(huge_pages, "ENABLED", file)
    monkeypatch.setattr(os, "confstr", lambda name: library)
    assert huge_pages.can_ask() is asks


def test_without_such_a_kernel_nobody_asks(monkeypatch):
    monkeypatch.setattr(huge_pages, "ENABLED", Path("/nonexistent"))
    assert huge_pages.can_ask() is False


def test_the_text_study_alone_asks():
    """The others gain nothing (docs/speed.md)."""
    assert [name for name, load in STUDIES.items() if load().huge_pages] == ["text_mlm"]


def test_a_command_asks_before_it_imports_jax():
    """The real command, which is stopped where it would start anew."""
    code = """
import sys
from tiejax.lab.runs import huge_pages
def told():
    print("jax" in sys.modules)
    sys.exit(0)
huge_pages.restart = told
from tiejax.lab.command import main
main()
"""
    ended = end(start_python("-c", code, "text-mlm", env=dict(os.environ)))
    assert ended.out.split() == ["False"], ended.err


@pytest.mark.parametrize(
    ("argv", "asks"), [(["text"], True), (["text", "--huge_pages", "false"], False), (["encoder"], False), (["layers"], False)]
)
def test_benchmarks_ask_where_they_are_told_to(argv, asks, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(huge_pages, "restart", lambda: asked.append(True))
    monkeypatch.setattr(RunDirectory, "probe", lambda path: None)
    benchmark = dataclasses.replace(command.BENCHMARKS[argv[0]], run=lambda settings, console: None)
    monkeypatch.setitem(command.BENCHMARKS, argv[0], benchmark)
    assert command.main([*argv, "--out", str(tmp_path)]) == 0
    assert bool(asked) is asks
