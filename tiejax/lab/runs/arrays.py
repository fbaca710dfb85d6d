"""Named arrays as the content of an .npz file, and back."""

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

MOST_FILES = 500  # that are open at a time


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return named arrays, no pickles, as the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def write_npz(file: BinaryIO, arrays: Mapping[str, np.ndarray], compressed: bool, scratch: Path | None = None) -> None:
    """Write named arrays, no pickles, as an .npz file, with no copy of a whole array in memory.

    scratch: a folder, where large arrays `[arm, seed, record, ...]` are in files record by record (`seed_by_seed`).
    """
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"{name}: {array.dtype} would need a pickle")
            header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for piece in pieces(array) if scratch is None else seed_by_seed(array, scratch):
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


def seed_by_seed(array: np.ndarray, scratch: Path, most: int = 2**28) -> Iterator[np.ndarray]:
    """Yield an array `[arm, seed, record, ...]` in C order, in pieces of about so many bytes, any other as `pieces` does.

    Where it lies in a file record by record, a member's numbers are all over the file. So it is first dealt out, from front to
    back, to a file for each of some blocks of members, whose numbers fit into memory together or are those of one member.
    """
    if array.ndim < 3 or array.nbytes <= most:
        yield from pieces(array, most)
        return
    arms, seeds, records, *rest = array.shape
    members, of_record = arms * seeds, array.nbytes // records
    block = max(1, most * members // array.nbytes, -(-members // MOST_FILES))
    blocks = [slice(start, min(start + block, members)) for start in range(0, members, block)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=scratch)) for _ in blocks]
        rows = max(1, most // of_record)
        for start in range(0, records, rows):
            dealt = np.moveaxis(array[:, :, start : start + rows], 2, 0).reshape(-1, members, *rest)
            for file, of_block in zip(files, blocks, strict=True):
                file.write(dealt[:, of_block].tobytes())
        for file in files:
            file.seek(0)
            if block > 1:
                dealt = np.fromfile(file, array.dtype).reshape(records, -1, *rest)
                yield np.moveaxis(dealt, 1, 0)
            else:
                count = max(1, most // array.itemsize)
                while len(part := np.fromfile(file, array.dtype, count)):
                    yield part


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays in the bytes of an .npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)
