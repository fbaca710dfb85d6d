"""Run commands on a pseudo-terminal of a given width, and read what they write."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]


def rows(output: str) -> list[str]:
    """Return the rows of a terminal that were written, each as often as it was written."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output))


def pty_output(command: Sequence[Any], columns: int = 120, errors: IO[str] | None = None) -> str:
    """Return what a command writes to its terminal; errors: the file for standard error, which by default is the terminal."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    arguments = [*map(str, command)]
    process = subprocess.Popen(arguments, stdin=other, stdout=other, stderr=errors or other, env=env, cwd=ROOT)
    os.close(other)
    output = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(main)
    assert process.wait() == 0
    return output.decode()
