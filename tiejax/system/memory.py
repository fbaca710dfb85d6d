"""The memory limit of this process, the control groups (cgroups v1 or v2) that limit it, and sizes in words."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


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
    space = address_space()
    return min([*_installed(), *_control_group_limits(root), *([] if space is None else [space])], default=None)


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


def address_space() -> int | None:
    """Return the limit of this process's address space in bytes (`ulimit -v`), None without a limit."""
    try:
        import resource
    except ImportError:  # not available on all systems
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the control groups of this process and of their parents, each with its cgroup version, 1 or 2.

    controller: name of what the groups limit, such as "memory". root: the directory that holds /proc and /sys.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        innermost = mount / group.strip("/")
        for folder in (innermost, *innermost.parents):
            if folder.is_relative_to(mount):
                yield folder, 1 if controllers else 2


def words_in(file: Path) -> list[str]:
    """Return the words of a file of a control group, [] if it is not visible from this group."""
    try:
        return file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []
