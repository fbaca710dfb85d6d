"""The memory that a computation takes in a process, measured on Linux."""

import ctypes
import gc
import platform
import re
from collections.abc import Callable
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # written to CLEAR, see proc(5)


def growth(compute: Callable[[], object]) -> int | None:
    """Return the peak resident bytes of this process while it computes, less those before; None except on Linux with glibc.

    Memory that the process has freed before is first returned to the system, so that it is counted if it is used again.
    """
    if not CLEAR.exists() or platform.libc_ver()[0] != "glibc":
        return None
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _bytes("VmRSS")
    CLEAR.write_text(RESET_PEAK)
    compute()
    return _bytes("VmHWM") - before


def _bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])
