"""Special files for tests."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def socket_at(folder: Path, name: str) -> Iterator[Path]:
    """Bind a socket in `folder`; from within it, since the path of a socket has at most 107 bytes."""
    before = os.open(".", os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            os.chdir(folder)
            bound.bind(name)
            os.fchdir(before)
            yield folder / name
    finally:
        os.fchdir(before)
        os.close(before)
