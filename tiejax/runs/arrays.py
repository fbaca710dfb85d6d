"""Named arrays as the content of an .npz file, and back."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tiejax.settings.command_line import BadInput


def npz(arrays: Mapping[str, np.ndarray], compressed: bool = False) -> bytes:
    """Return named arrays, no pickles, as the bytes of an .npz file."""
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_finished(path: Path, what: str) -> dict[str, np.ndarray]:
    """Return the arrays in a file that a part of a run has left; raises BadInput if it is damaged.

    what: happens if the file is removed, as "that model is trained again".
    """
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile):
        raise BadInput(f"--resume: {path} is damaged; remove it, and {what}") from None
