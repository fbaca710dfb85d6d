"""Files and folders in a checkpoint's folder, at any depth; links to other places are refused."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.system.files import KINDS

MOST_DEPTH = 64  # limit of nested folders, such that a copy can be removed again if writing fails
BLOBS = "blobs"  # folder of the hub's cache to which the links in `snapshots/REVISION` point

# Files with the same weights in other formats, which are not rewritten.
OTHER_FORMATS = (
    *("pytorch_model*.bin", "pytorch_model*.bin.index.json", "tf_model*.h5*", "flax_model*.msgpack*", "*.gguf", "*.onnx*"),
    *("*.ot", "*.ckpt*", "consolidated*", "openvino_model*"),
)
OTHER_FOLDERS = ("original", "onnx", "openvino", "coreml")  # with the same weights in other formats


class Entries(NamedTuple):
    """Folders and files below a folder, as relative paths, each folder before its contents."""

    folders: list[Path]
    files: list[Path]


def entries(root: Path) -> Entries:
    """List a folder recursively; raises CheckpointError for an entry that is not a file, a folder or a link to a file.

    A link may point to a file in the folder itself, or, as in the hub's cache, in the `blobs` two levels up.
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
                    raise CheckpointError(f"{root}: has folders nested more than {MOST_DEPTH} deep; remove them")
                found.folders.append(folder / name)
                waiting.append(folder / name)
            else:
                found.files.append(folder / name)
    return found


def other_formats(paths: Iterable[Path]) -> list[Path]:
    """Return the files and folders that hold a checkpoint's weights in another format than safetensors.

    paths: relative to the checkpoint's folder.
    """
    return [path for path in paths if path.parts[0] in OTHER_FOLDERS or any(map(Path(path.parts[0]).match, OTHER_FORMATS))]


def _is_folder(root: Path, entry: Path, allowed: tuple[Path, ...]) -> bool:
    """Return whether an entry is a folder; raises CheckpointError unless it is a folder or a file that may be copied."""
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
        raise CheckpointError(f"{path}: cannot be copied: it is {what}; replace it by a file, or remove it")
    return False
