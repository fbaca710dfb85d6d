"""Flags of XLA: whether the installed jaxlib has one. XLA ends the process for a flag that it does not know."""

import mmap
from importlib.machinery import PathFinder
from pathlib import Path


def has_flag(name: str) -> bool:
    """Return whether the library of jaxlib contains the name of a flag, such as `xla_cpu_multi_thread_eigen`.

    jax is not imported. False if the library is not found.
    """
    found = PathFinder.find_spec("jaxlib")
    folder = Path(found.origin).parent if found and found.origin else Path()
    for library in folder.glob("libjax_common*"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(name.encode() + b"\0") >= 0:
                return True
    return False
