"""Names of files: a check of names that others chose, and a context manager that adds the file name to OSErrors."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

MOST_NAME_BYTES = 255


def is_name(text: str) -> bool:
    """Return whether a text is the name of one file in a folder, not a path, on every operating system."""
    if text in ("", ".", "..") or set("/\\\0") & set(text):
        return False
    try:
        return len(text.encode()) <= MOST_NAME_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


@contextlib.contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add `path` to OSErrors without a filename that are raised in this context, such as those of a failed write."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
