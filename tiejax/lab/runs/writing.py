"""Atomic replacement of files."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tiejax.system.file_names import naming_file


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: a killed process leaves the old or the new content. Raises OSError with the path."""
    replace_with(path, lambda file: file.write(content))


def replace_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file atomically by the bytes that `write` writes."""
    part = path.with_name(f".{path.name}.part")
    with naming_file(path):
        try:
            with part.open("wb") as file:
                write(file)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
