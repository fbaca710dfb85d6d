"""Atomic creation of a folder, which is written under a unique name next to its final path, then renamed."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tiejax.checkpoints.hub.errors import CheckpointError

INCOMPLETE = "incomplete-"
MOST_LETTERS = 50  # of the final name in the unique name: a name has at most 255 bytes, a letter up to four


def check_new(out: Path) -> None:
    """Raise CheckpointError if `out` exists, even as a dangling link, or if no folder can have that name."""
    try:
        out.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{out}: cannot be created: {getattr(error, 'strerror', None) or error}") from None
    raise CheckpointError(f"{out}: already exists; name a new folder")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder next to `out`, and rename it to `out` at the end.

    After an exception, the folder and any parents created for it are removed. A process that is killed leaves
    `incomplete-...-OUT`, which no later process uses or removes.
    """
    parents = [parent for parent in out.absolute().parents if not os.path.lexists(parent)]
    folder = out.with_name(f"{INCOMPLETE}{secrets.token_hex(4)}-{out.name[:MOST_LETTERS]}")
    try:
        folder.mkdir(parents=True)
        yield folder
        check_new(out)  # another process may have created it meanwhile
        os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in parents:  # innermost first
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
