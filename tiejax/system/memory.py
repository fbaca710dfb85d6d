"""The memory limit of this process."""

import os
from collections.abc import Iterator
from pathlib import Path


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
    """Yield the limits of the control groups (cgroups v1 or v2) of this process and of their parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        innermost = mount / group.strip("/")
        for folder in (innermost, *innermost.parents):
            if folder.is_relative_to(mount):
                yield from _number_in(folder / file)


def _number_in(file: Path) -> Iterator[int]:
    try:
        yield int(file.read_text())
    except (OSError, ValueError):  # not visible from this group, or `max`
        return


def _address_space_limit() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # not available on all systems
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit
