"""Files that are there whole or not at all, and errors of the system that name their file."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system inside say which path they are of: those of writing do not by themselves."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


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
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
