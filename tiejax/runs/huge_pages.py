"""Huge pages for the command that trains on text: what such a process spends up to a fifth of its time on is asking for memory.

XLA allocates what it computes with anew in every computation, and the kernel then hands it out page by page, 4 KiB at a time,
or 2 MiB where the process has asked. glibc asks if it is told to before the process starts.
"""

import os
import sys
from pathlib import Path

SETTING = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# Who sets one of these has said how memory is to be allocated.
ALLOCATOR = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD")
KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FIRST_GLIBC = (2, 35)


def start_anew() -> None:
    """Start this command anew with huge pages, where that helps: it must not have imported jax, nor written anything.

    Not where the environment says how memory is to be allocated (an empty GLIBC_TUNABLES does), where the kernel does
    not ask to be asked, or without glibc.
    """
    if any(name in os.environ for name in ALLOCATOR) or not can_ask() or "jax" in sys.modules:
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **SETTING})


def can_ask() -> bool:
    """Say whether the kernel waits to be asked, and glibc can."""
    if not KERNEL.is_file() or "[madvise]" not in KERNEL.read_text():
        return False
    try:
        library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except ValueError:  # another library, which has no such name
        return False
    return library == "glibc" and tuple(map(int, version.split(".")[:2])) >= FIRST_GLIBC
