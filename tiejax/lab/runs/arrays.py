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
MOST_BYTES = 2**28  # that are handled at once


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
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                if scratch is None or array.ndim < 3 or array.nbytes <= MOST_BYTES:
                    np.lib.format.write_array(member, array, allow_pickle=False)
                    continue
                header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(member, header)
                for piece in seed_by_seed(array, scratch):
                    member.write(piece.tobytes())


def seed_by_seed(array: np.ndarray, scratch: Path, most: int = MOST_BYTES) -> Iterator[np.ndarray]:
    """Yield an array `[arm, seed, record, ...]` in C order, in pieces of about `most` bytes.

    In a file that is ordered by record, the numbers of a member are scattered. The array is therefore read once from front to
    back and distributed over temporary files, one for each block of members; a block fits into memory or is a single member.
    """
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
