"""Temporary arrays on disk, for results that are too large for memory."""

import math
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing


def scratch_array(shape: tuple[int, ...], folder: Path | None, dtype: np.typing.DTypeLike = float) -> np.ndarray:
    """Return an uninitialised array, in an unnamed temporary file in `folder`, or in memory if that is None.

    The file disappears with the array. Raises an OSError that names the folder if the disk has too little space.
    """
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if folder is None or not size:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Not available on all systems; without it a full disk kills the process while the array is filled.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(folder)) from error
