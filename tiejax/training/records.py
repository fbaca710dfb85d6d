"""The records of an ensemble during training, in memory or, if they are too large, in files.

A checkpoint holds records in memory as arrays. For records in files it holds the number of rows in each file and their SHA-256
digest: files only grow, so the rows of an older checkpoint are the first rows of a newer one. Further rows, left by a killed
process, are overwritten when the run resumes.
"""

import dataclasses
import errno
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from tiejax.system.files import naming_file
from tiejax.system.scratch import scratch_array

Records = Mapping[str, Mapping[str, np.ndarray]]
FOLDER = "records"
BLOCK = 2**24  # bytes per read


def join_seeds(arrays: Sequence[np.ndarray], axis: int, conditions: int = 1, folder: Path | None = None) -> np.ndarray:
    """Concatenate arrays of several ensembles along the axis of their seeds.

    Each array, and the result, has all its seeds under the first condition, then under the next. folder: folder for the
    result, as a memory-mapped temporary file (default: memory).
    """
    split = [array.reshape(*array.shape[:axis], conditions, -1, *array.shape[axis + 1 :]) for array in arrays]
    lengths = [array.shape[axis + 1] for array in split]
    first = split[0].shape
    joined = scratch_array((*first[: axis + 1], sum(lengths), *first[axis + 2 :]), folder, split[0].dtype)
    ends = np.cumsum(lengths).tolist()
    for array, length, end in zip(split, lengths, ends, strict=True):
        joined[(*[slice(None)] * (axis + 1), slice(end - length, end))] = array
    return joined.reshape(*arrays[0].shape[:axis], -1, *arrays[0].shape[axis + 1 :])


def join_records(parts: Sequence[Records], conditions: int = 1, folder: Path | None = None) -> Records:
    """Return the records `[record, seed, ...]` of ensembles that differ in their seeds only, as those of a joint ensemble.

    conditions, folder: as in `join_seeds`.
    """
    if len(parts) == 1:
        return parts[0]

    def joined(name: str, field: str) -> np.ndarray:
        arrays = [part[name][field] for part in parts]
        return arrays[0] if field == "step" else join_seeds(arrays, 1, conditions, folder)

    return {name: {field: joined(name, field) for field in fields} for name, fields in parts[0].items()}


class RecordsInMemory:
    """Records so far, recorder -> field -> array `[record, ...]`, in memory."""

    def __init__(self, records: Records) -> None:
        self._parts = list[Records]()
        if records:
            self.append(records)

    def append(self, records: Records) -> None:
        """Append copies of a chunk's records, which are views of a larger buffer that would otherwise stay in memory.

        Raises ValueError if their fields differ from those of earlier records.
        """
        if self._parts:
            _check_fields(self._parts[0], records)
        self._parts.append({name: {field: np.array(rows) for field, rows in records[name].items()} for name in records})

    def all(self) -> Records:
        """Return all records so far."""
        if len(self._parts) > 1:
            first = self._parts[0]
            self._parts = [
                {
                    name: {field: np.concatenate([part[name][field] for part in self._parts]) for field in fields}
                    for name, fields in first.items()
                }
            ]
        return self._parts[0] if self._parts else {}


@dataclasses.dataclass
class _Column:
    """The rows of one field, in a file.

    shape: the shape of one row. digest: SHA-256 of all rows so far.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    rows: int
    digest: Any

    @property
    def size(self) -> int:
        """The number of bytes of all rows."""
        return self.rows * math.prod(self.shape) * self.dtype.itemsize

    def append(self, values: np.ndarray) -> None:
        """Append rows to the file, overwriting rows left by a killed process.

        Raises ValueError if dtype or shape differ from earlier rows, OSError if the file has lost rows.
        """
        if (values.dtype, values.shape[1:]) != (self.dtype, self.shape):
            rows = f"{values.dtype} {values.shape[1:]}"
            raise ValueError(f"{self.path.name}: rows of {rows} cannot follow rows of {self.dtype} {self.shape}")
        content = np.ascontiguousarray(values).tobytes()
        with naming_file(self.path), open(self.path, "r+b", opener=_created if not self.rows else _unlinked) as file:
            if (size := os.fstat(file.fileno()).st_size) < self.size:
                raise OSError(errno.EIO, f"has {size} bytes, but {self.size} were written")
            file.seek(self.size)
            file.truncate()
            file.write(content)
        self.digest.update(content)
        self.rows += len(values)

    def check(self, digest: str) -> None:
        """Read the rows; raises ValueError if their digest is not `digest`, OSError if the file is missing."""
        left = self.size
        with naming_file(self.path), self.path.open("rb") as file:
            while left and (block := file.read(min(left, BLOCK))):
                self.digest.update(block)
                left -= len(block)
        if left or self.digest.hexdigest() != digest:
            raise ValueError(f"the digest of {self.path.parent.name}/{self.path.name} differs")

    def array(self) -> np.ndarray:
        """Return all rows as a memory-mapped array; raises OSError with the path."""
        if not self.size:
            return np.empty((self.rows, *self.shape), self.dtype)
        with naming_file(self.path):
            return np.asarray(np.memmap(self.path, self.dtype, "r", shape=(self.rows, *self.shape)))


def _unlinked(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link, whose target would be overwritten."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _created(path: str, flags: int) -> int:
    """Open a file as `_unlinked` does; create it if it does not exist."""
    return _unlinked(path, flags | os.O_CREAT)


def quoted(name: str) -> str:
    """Return the name of a recorder or field without slashes and dots, which separate names in files; `unquote` reads it."""
    return quote(name, safe="").replace(".", "%2E")


def _check_fields(before: Mapping[str, Mapping[str, Any]], records: Records) -> None:
    """Raise ValueError unless records have the fields of those before them."""
    known, new = (sorted(f"{name}/{field}" for name in each for field in each[name]) for each in (before, records))
    if new != known:
        raise ValueError(f"records of {new} cannot follow records of {known}")


class RecordFiles(Mapping[str, Mapping[str, np.ndarray]]):
    """Records so far, recorder -> field -> array `[record, ...]`, memory-mapped from files.

    Each field has a file `recorder.field` in the folder (see `quoted`): its rows one after the other, in C order and native
    byte order. Appending raises OSError, with the path, if writing fails; earlier checkpoints stay valid.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, dict[str, _Column]] = {}

    @classmethod
    def opened(cls, folder: Path, content: Mapping[str, Any]) -> "RecordFiles":
        """Return the records that a checkpoint lists (`content`); raises ValueError if a file is missing or has changed."""
        files = cls(folder)
        for name, fields in content.items():
            for field, entry in fields.items():
                if not (path := files._path(name, field)).is_file():  # reading a pipe would block
                    raise ValueError(f"{folder.name}/{path.name} is not a file")
                dtype, shape, rows = np.dtype(entry["dtype"]), tuple(entry["shape"]), entry["rows"]
                if dtype.hasobject or not all(type(number) is int and number >= 0 for number in (rows, *shape)):
                    raise ValueError(f"{folder.name}/{path.name} cannot hold {rows} rows of {dtype} {shape}")
                column = files._new(name, field, dtype, shape)
                column.rows = rows
                column.check(entry["digest"])
        return files

    def _path(self, name: str, field: str) -> Path:
        return self._folder / f"{quoted(name)}.{quoted(field)}"

    def _new(self, name: str, field: str, dtype: np.dtype, shape: tuple[int, ...]) -> _Column:
        column = _Column(self._path(name, field), dtype, shape, 0, hashlib.sha256())
        return self._columns.setdefault(name, {}).setdefault(field, column)

    def append(self, records: Records) -> None:
        """Append the records of a chunk; raises ValueError if their fields differ from those of earlier records."""
        if self._columns:
            _check_fields(self._columns, records)
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, fields in records.items():
            for field, values in fields.items():
                known_column = self._columns.get(name, {}).get(field)
                (known_column or self._new(name, field, values.dtype, values.shape[1:])).append(values)

    def content(self) -> dict[str, Any]:
        """Flush all files to the disk, and return the entries that a checkpoint holds; raises OSError with the path."""
        for fields in self._columns.values():
            for column in fields.values():
                with naming_file(column.path), column.path.open("rb") as file:
                    os.fsync(file.fileno())
        return {
            name: {
                field: {
                    "dtype": column.dtype.name,
                    "shape": list(column.shape),
                    "rows": column.rows,
                    "digest": column.digest.hexdigest(),
                }
                for field, column in fields.items()
            }
            for name, fields in self._columns.items()
        }

    def all(self) -> Records:
        """Return all records so far: this mapping itself."""
        return self

    def __getitem__(self, name: str) -> Mapping[str, np.ndarray]:
        return {field: column.array() for field, column in self._columns[name].items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
