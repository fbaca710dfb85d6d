"""How much memory this process may use."""

import os
from collections.abc import Iterator
from pathlib import Path


def machine_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process may use, None where nothing says so.

    The least of what is installed, of the limits of its control groups, and of the address space that it may have (ulimit -v).
    root: where /proc and /sys are.
    """
    limits = [*_installed(), *_of_control_groups(root), *_of_address_space()]
    return min(limits, default=None)


def _installed() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not everywhere
        return


def _of_control_groups(root: Path) -> Iterator[int]:
    """Yield the limits of the groups of this process and of those that they lie in, in either form of the hierarchy."""
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
    except (OSError, ValueError):  # another group's, or `max`
        return


def _of_address_space() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # not everywhere
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit
