"""The memory limit of this process, and sizes in words."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tiejax.system.control_groups import control_groups, words_in


def size_words(count: float) -> str:
    """Format a number of bytes, as 1.50 GiB, 12.3 MiB or 640 B."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            shown = count / size
            return f"{shown:,.0f} {unit}" if shown >= 1000 else f"{shown:.3g} {unit}"
    return f"{count:.0f} B"


def machine_memory(root: Path = Path("/")) -> int | None:
    """Return this process's memory limit in bytes, or None if it cannot be determined.

    The limit is the smallest of the installed memory, the limits of the process's control groups, and its address space limit
    (ulimit -v). `root` is the directory that holds /proc and /sys.
    """
    limits = [*_installed(), *_control_group_limits(root), *_address_space_limit()]
    return min(limits, default=None)


def _installed() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not available on all systems
        return


def _control_group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups of this process and of their parents."""
    for folder, version in control_groups("memory", root):
        with contextlib.suppress(ValueError):  # `max`, or no file
            (limit,) = map(int, words_in(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")))
            yield limit


def _address_space_limit() -> Iterator[int]:
    if (limit := address_space()) is not None:
        yield limit


def address_space() -> int | None:
    """Return the limit of this process's address space in bytes (`ulimit -v`), None without a limit."""
    try:
        import resource
    except ImportError:  # not available on all systems
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit
