"""Named arrays as .npz files."""

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

MOST_FILES = 500  # open at the same time


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return named arrays as the bytes of an .npz file, without pickles."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def write_npz(file: BinaryIO, arrays: Mapping[str, np.ndarray], compressed: bool, scratch: Path | None = None) -> None:
    """Write named arrays as an .npz file, without pickles and without a copy of a whole array in memory.

    scratch: folder for temporary files, if large arrays `[arm, seed, record, ...]` are memory maps of files that are ordered by
    record (see `seed_by_seed`).
    """
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"{name}: arrays of {array.dtype} cannot be written without pickles")
            header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for piece in pieces(array) if scratch is None else seed_by_seed(array, scratch):
                    member.write(piece.tobytes())


def pieces(array: np.ndarray, most: int = 2**28) -> Iterator[np.ndarray]:
    """Yield an array in C order, in pieces of at most `most` bytes or of one number."""
    if array.nbytes <= most or not array.ndim:
        yield array
    elif (rows := most * len(array) // array.nbytes) or array.ndim == 1:
        for start in range(0, len(array), max(1, rows)):
            yield array[start : start + max(1, rows)]
    else:
        for row in array:
            yield from pieces(row, most)


def seed_by_seed(array: np.ndarray, scratch: Path, most: int = 2**28) -> Iterator[np.ndarray]:
    """Yield an array `[arm, seed, record, ...]` in C order, in pieces of about `most` bytes; other arrays as `pieces` does.

    In a file that is ordered by record, the numbers of a member are scattered. The array is therefore read once from front to
    back and distributed over temporary files, one for each block of members; a block fits into memory or is a single member.
    """
    if array.ndim < 3 or array.nbytes <= most:
        yield from pieces(array, most)
        return
    arms, seeds, records, *rest = array.shape
    members, record_bytes = arms * seeds, array.nbytes // records
    block = max(1, most * members // array.nbytes, -(-members // MOST_FILES))
    blocks = [slice(start, min(start + block, members)) for start in range(0, members, block)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=scratch)) for _ in blocks]
        rows = max(1, most // record_bytes)
        for start in range(0, records, rows):
            by_record = np.moveaxis(array[:, :, start : start + rows], 2, 0).reshape(-1, members, *rest)
            for file, in_block in zip(files, blocks, strict=True):
                file.write(by_record[:, in_block].tobytes())
        for file in files:
            file.seek(0)
            if block > 1:
                by_record = np.fromfile(file, array.dtype).reshape(records, -1, *rest)
                yield np.moveaxis(by_record, 1, 0)
            else:
                count = max(1, most // array.itemsize)
                while len(part := np.fromfile(file, array.dtype, count)):
                    yield part


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays in an .npz file that is given as bytes."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)
