"""Huge pages for the command that trains on text, which otherwise spends up to a tenth of its time on allocating memory.

XLA allocates memory for every computation, and the kernel provides it in pages of 4 KiB, or of 2 MiB if the process has asked
for huge pages. glibc asks for them if a variable is set before the process starts.
"""

import contextlib
import os
import sys
from pathlib import Path

from tiejax.lab.settings.command_line import AS_COMMAND

SETTING = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# If one of these is set, the environment decides how memory is allocated.
ALLOCATOR = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD")
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FIRST_GLIBC = (2, 35)


def restart() -> None:
    """Replace this process by the same command with huge pages; it must not have imported jax, nor written anything.

    Does nothing if the environment decides how memory is allocated (an empty GLIBC_TUNABLES does), if the kernel does not
    provide huge pages on request, without glibc, and in a process that was not started as a command (`run_main`).
    """
    if not AS_COMMAND.get() or "jax" in sys.modules or any(name in os.environ for name in ALLOCATOR) or not can_ask():
        return
    sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):  # continue without huge pages
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **SETTING})


def can_ask() -> bool:
    """Return whether the kernel provides huge pages on request, and glibc can request them."""
    try:
        if "[madvise]" not in ENABLED.read_text():
            return False
        library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return library == "glibc" and tuple(map(int, version.split(".")[:2])) >= FIRST_GLIBC
    except (OSError, ValueError):  # no such file or name, or an unknown form of version
        return False
