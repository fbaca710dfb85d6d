"""Huge pages for the command that trains on text: up to a tenth of its time goes to asking for memory.

XLA allocates what it computes with anew in every computation, and the kernel then hands it out page by page, 4 KiB at a time,
or 2 MiB where the process has asked. glibc asks if it is told to before the process starts.
"""

import contextlib
import os
import sys
from pathlib import Path

from tiejax.lab.settings.command_line import AS_COMMAND

SETTING = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# Who sets one of these has said how memory is to be allocated.
ALLOCATOR = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD")
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FIRST_GLIBC = (2, 35)


def restart() -> None:
    """Start this command anew with huge pages, where that helps: it must not have imported jax, nor written anything.

    Not where the environment says how memory is to be allocated (an empty GLIBC_TUNABLES does), where the kernel does
    not ask to be asked, without glibc, and never in a process that is not this command's own (`run_main`).
    """
    if not AS_COMMAND.get() or "jax" in sys.modules or any(name in os.environ for name in ALLOCATOR) or not can_ask():
        return
    sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):  # a run does without
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **SETTING})


def can_ask() -> bool:
    """Say whether the kernel waits to be asked, and glibc can."""
    try:
        if "[madvise]" not in ENABLED.read_text():
            return False
        library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return library == "glibc" and tuple(map(int, version.split(".")[:2])) >= FIRST_GLIBC
    except (OSError, ValueError):  # no such file or name, or a version in another form
        return False
