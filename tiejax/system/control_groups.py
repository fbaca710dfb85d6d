"""The control groups (cgroups v1 or v2) of this process, which limit its memory and its CPU time."""

from collections.abc import Iterator
from pathlib import Path


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
