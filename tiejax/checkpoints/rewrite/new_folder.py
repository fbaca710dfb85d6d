"""A folder that is there whole or not at all: made beside its place under a name of its own, where nothing is removed."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tiejax.checkpoints.hub.errors import CheckpointError

INCOMPLETE = "incomplete-"
MOST_LETTERS = 50  # of the folder's own name: a name has at most 255 bytes, and a letter up to four


def check_new(out: Path) -> None:
    """Raise CheckpointError unless nothing is at `out`, no link that leads nowhere either, and a folder can have that name."""
    try:
        out.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{out}: no folder can be made there: {getattr(error, 'strerror', None) or error}") from None
    raise CheckpointError(f"{out}: is there already; name a folder that is new")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a folder beside `out` that becomes it, as one act, where nothing is raised; else both, and new parents, are gone.

    A process that is killed leaves `incomplete-...-OUT`, which nobody else takes for anything, and nobody removes.
    """
    parents = [parent for parent in out.absolute().parents if not os.path.lexists(parent)]
    folder = out.with_name(f"{INCOMPLETE}{secrets.token_hex(4)}-{out.name[:MOST_LETTERS]}")
    try:
        folder.mkdir(parents=True)
        yield folder
        check_new(out)  # what another process has made meanwhile stays
        os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in parents:  # the innermost first
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
