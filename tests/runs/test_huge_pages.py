"""Huge pages, asked of real processes: the kernel says of each part of their memory whether it was asked for."""

import os
from pathlib import Path

import pytest
from processes import end, start_python

from tiejax.runs import huge_pages

# Allocates 64 MiB and prints what the kernel says of them; `hg`: huge pages are asked for.
LOOK = """
import os, sys
started = os.environ.get("STARTED")
os.environ["STARTED"] = str(os.getpid())
from tiejax.runs import huge_pages
if "jax" in sys.argv:
    import jax
huge_pages.start_anew()
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


def test_who_has_imported_jax_stays():
    assert look("jax", env={}) == ["False", "False", "jax"]


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
    ],
)
def test_where_asking_helps(enabled, library, asks, tmp_path, monkeypatch):
    file = tmp_path / "enabled"
    file.write_text(enabled + "\n")
    monkeypatch.setattr(huge_pages, "KERNEL", file)
    monkeypatch.setattr(os, "confstr", lambda name: library)
    assert huge_pages.can_ask() is asks


def test_without_such_a_kernel_nobody_asks(monkeypatch):
    monkeypatch.setattr(huge_pages, "KERNEL", Path("/nonexistent"))
    assert huge_pages.can_ask() is False
