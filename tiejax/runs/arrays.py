"""Named arrays as the content of an .npz file, and back."""

import io
from collections.abc import Mapping

import numpy as np


def npz(arrays: Mapping[str, np.ndarray], compressed: bool = False) -> bytes:
    """Return named arrays, no pickles, as the bytes of an .npz file."""
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays in the bytes of an .npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)
