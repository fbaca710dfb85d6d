"""The number of CPU cores that this process may use."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from tiejax.system.memory import control_groups, words_in


def cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use: those of its affinity, but no more than its CPU quota.

    The quota is the smallest of its control groups, as a container has it (`docker run --cpus 2`), rounded up. `root` is the
    directory that holds /proc and /sys.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([allowed, *(max(1, math.ceil(quota)) for quota in _quotas(root))])


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of the control groups of this process, in cores."""
    for folder, version in control_groups("cpu", root):
        if version == 2:
            words = words_in(folder / "cpu.max")
        else:
            words = words_in(folder / "cpu.cfs_quota_us") + words_in(folder / "cpu.cfs_period_us")
        with contextlib.suppress(ValueError):  # no quota: `max`, or no file
            quota, period = map(int, words)
            if quota > 0 and period > 0:  # without a quota, version 1 has -1
                yield quota / period
