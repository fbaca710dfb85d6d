"""Files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tiejax.system.naming import naming


def replace(path: Path, content: bytes) -> None:
    """Replace a file as one act, so that a killed process leaves the old one or the new one; raises OSError with its path."""
    replace_with(path, lambda file: file.write(content))


def replace_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file as `replace` does, by what `write` writes."""
    beside = path.with_name(f".{path.name}.part")
    with naming(path):
        try:
            with beside.open("wb") as file:
                write(file)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
