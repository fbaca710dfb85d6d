"""Named arrays as the content of an .npz file, and back."""

import io
import zipfile
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return named arrays, no pickles, as the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def write_npz(file: BinaryIO, arrays: Mapping[str, np.ndarray], compressed: bool) -> None:
    """Write named arrays, no pickles, as an .npz file, with no copy of a whole array in memory."""
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"{name}: {array.dtype} would need a pickle")
            header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for piece in pieces(array):
                    member.write(piece.tobytes())


def pieces(array: np.ndarray, most: int = 2**28) -> Iterator[np.ndarray]:
    """Yield an array in C order, in pieces of at most so many bytes, or of one number."""
    if array.nbytes <= most or not array.ndim:
        yield array
    elif (rows := most * len(array) // array.nbytes) or array.ndim == 1:
        for start in range(0, len(array), max(1, rows)):
            yield array[start : start + max(1, rows)]
    else:
        for row in array:
            yield from pieces(row, most)


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays in the bytes of an .npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)
