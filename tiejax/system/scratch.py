"""Arrays that are too large for memory and that nobody needs once this process has ended."""

import math
import os
import tempfile
from pathlib import Path

import numpy as np


def scratch_array(shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    """Return a float64 array to be filled: in memory, or in a file without a name on the disk of a folder.

    Raises OSError, with the folder, where the disk has no room for it.
    """
    size = np.dtype(float).itemsize * math.prod(shape)
    if folder is None or not size:
        return np.empty(shape)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # not everywhere; without it a full disk ends the process while this is filled
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.asarray(np.memmap(file, float, "r+", shape=shape))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(folder)) from error
