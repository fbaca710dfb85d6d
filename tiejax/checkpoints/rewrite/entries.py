"""What lies in a checkpoint's folder, at any depth, and whether it may be copied: no link leads anywhere else."""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.system.files import KINDS

MOST_DEPTH = 64  # of folders in folders; what is made of them must be removed again where writing fails
BLOBS = "blobs"  # where the hub's cache has the files that the links in `snapshots/REVISION` lead to


class Entries(NamedTuple):
    """Folders and files in a folder, by their paths within it, each folder before what it holds."""

    folders: list[Path]
    files: list[Path]


def entries(root: Path) -> Entries:
    """Return what is in a folder; raises CheckpointError, naming it, for anything but files, folders and links to files.

    A link may lead to a file in the folder itself, or, as in the hub's cache, in the `blobs` two levels up.
    """
    own = Path(os.path.realpath(root))
    allowed = (own, own.parent.parent / BLOBS)
    found, waiting = Entries([], []), [Path()]
    while waiting:
        folder = waiting.pop()
        try:
            names = sorted(os.listdir(root / folder))
        except OSError as error:
            raise CheckpointError(f"{root / folder}: cannot be read: {error.strerror}") from None
        for name in names:
            if _is_folder(root, folder / name, allowed):
                if len(folder.parts) >= MOST_DEPTH:
                    raise CheckpointError(f"{root}: holds folders more than {MOST_DEPTH} deep; take them away")
                found.folders.append(folder / name)
                waiting.append(folder / name)
            else:
                found.files.append(folder / name)
    return found


def _is_folder(root: Path, entry: Path, allowed: tuple[Path, ...]) -> bool:
    """Say whether this is a folder, or else a file; raises CheckpointError where it is neither."""
    path = root / entry
    try:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            return True
        if linked := stat.S_ISLNK(mode):
            mode = path.stat().st_mode
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be copied: {error.strerror}") from None
    what = f"a link to {os.path.realpath(path)}" if linked else KINDS.get(stat.S_IFMT(mode), "something else")
    if not stat.S_ISREG(mode) or (linked and not any(Path(os.path.realpath(path)).is_relative_to(place) for place in allowed)):
        raise CheckpointError(f"{path}: is not copied: it is {what}; put a file in its place, or take it away")
    return False
