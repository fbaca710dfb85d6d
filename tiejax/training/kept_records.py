"""Where an ensemble's records are kept until it has trained: in memory, or in files where they outgrow it.

A checkpoint holds the records of memory itself. Of files it holds how many rows of each are its own and their SHA-256 digest:
files only grow, so that the rows of an older checkpoint are the first of a newer one's. Rows behind them, left by a process
that was killed, are written over where the run goes on.
"""

import dataclasses
import errno
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from tiejax.system.naming import naming

Records = Mapping[str, Mapping[str, np.ndarray]]
FOLDER = "records"
BLOCK = 2**24  # bytes that are read at a time


class RecordsInMemory:
    """The records so far, by recorder and field, `[record, ...]`, in memory."""

    def __init__(self, records: Records) -> None:
        self._parts = list[Records]()
        if records:
            self.append(records)

    def append(self, records: Records) -> None:
        """Take in the records of a chunk: copies, since a chunk's own are parts of a larger buffer, which would stay."""
        self._parts.append({name: {field: np.array(rows) for field, rows in records[name].items()} for name in records})

    def all(self) -> Records:
        """Return all of them."""
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
    """The rows of one field, in a file. digest: of all rows so far."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]  # of a row
    rows: int
    digest: Any

    @property
    def size(self) -> int:
        """The bytes of all rows."""
        return self.rows * math.prod(self.shape) * self.dtype.itemsize

    def append(self, values: np.ndarray) -> None:
        """Write rows behind the others, over whatever a killed process has left there.

        Raises ValueError if the rows are of another type or shape, OSError if the others are no longer there.
        """
        if (values.dtype, values.shape[1:]) != (self.dtype, self.shape):
            rows = f"{values.dtype} {values.shape[1:]}"
            raise ValueError(f"{self.path.name}: rows of {rows}, those before of {self.dtype} {self.shape}")
        content = np.ascontiguousarray(values).tobytes()
        with naming(self.path), open(self.path, "r+b", opener=_created if not self.rows else _unlinked) as file:
            if (there := os.fstat(file.fileno()).st_size) < self.size:
                raise OSError(errno.EIO, f"has {there} bytes, {self.size} were written")
            file.seek(self.size)
            file.truncate()
            file.write(content)
        self.digest.update(content)
        self.rows += len(values)

    def check(self, digest: str) -> None:
        """Take in the rows that are there; raises ValueError if they are not those of this digest, OSError if they are gone."""
        left = self.size
        with naming(self.path), self.path.open("rb") as file:
            while left and (block := file.read(min(left, BLOCK))):
                self.digest.update(block)
                left -= len(block)
        if left or self.digest.hexdigest() != digest:
            raise ValueError(f"the digest of {self.path.parent.name}/{self.path.name} differs")

    def array(self) -> np.ndarray:
        """Return all rows as an array that is read from the file where it is looked at; raises OSError with the path."""
        if not self.size:
            return np.empty((self.rows, *self.shape), self.dtype)
        with naming(self.path):
            return np.asarray(np.memmap(self.path, self.dtype, "r", shape=(self.rows, *self.shape)))


def _unlinked(path: str, flags: int) -> int:
    """Open a file; a link is refused, since what it leads to would be written over."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _created(path: str, flags: int) -> int:
    """Open a file as `_unlinked` does, or create it."""
    return _unlinked(path, flags | os.O_CREAT)


def _fields(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted(f"{name}/{field}" for name, fields in records.items() for field in fields)


class RecordFiles(Mapping[str, Mapping[str, np.ndarray]]):
    """The records so far, by recorder and field, `[record, ...]`, read from files where they are looked at.

    Each field has a file in the folder: its rows one after the other, in C order and this machine's byte order.
    Appending raises OSError, with the path, where the system refuses; checkpoints before it stay good.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, dict[str, _Column]] = {}

    @classmethod
    def opened(cls, folder: Path, content: Mapping[str, Any]) -> "RecordFiles":
        """Return the records that a checkpoint said were its own; raises ValueError if they are not there as they were."""
        files = cls(folder)
        for name, fields in content.items():
            for field, said in fields.items():
                if not (path := files._path(name, field)).is_file():  # a pipe would be waited for
                    raise ValueError(f"{folder.name}/{path.name} is no file")
                dtype, shape, rows = np.dtype(said["dtype"]), tuple(said["shape"]), said["rows"]
                if dtype.hasobject or not all(type(number) is int and number >= 0 for number in (rows, *shape)):
                    raise ValueError(f"{folder.name}/{path.name} cannot hold {rows} rows of {dtype} {shape}")
                column = files._new(name, field, dtype, shape)
                column.rows = rows
                column.check(said["digest"])
        return files

    def _path(self, name: str, field: str) -> Path:
        return self._folder / f"{quote(name, safe='')}.{quote(field, safe='')}"

    def _new(self, name: str, field: str, dtype: np.dtype, shape: tuple[int, ...]) -> _Column:
        column = _Column(self._path(name, field), dtype, shape, 0, hashlib.sha256())
        return self._columns.setdefault(name, {}).setdefault(field, column)

    def append(self, records: Records) -> None:
        """Write the records of a chunk behind the others; raises ValueError if they are of other fields."""
        if self._columns and (asked := _fields(records)) != (known := _fields(self._columns)):
            raise ValueError(f"records of {asked}, those before of {known}")
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, fields in records.items():
            for field, values in fields.items():
                known_column = self._columns.get(name, {}).get(field)
                (known_column or self._new(name, field, values.dtype, values.shape[1:])).append(values)

    def content(self) -> dict[str, Any]:
        """Return what a checkpoint says of them, once they are on the disk; raises OSError with the path."""
        for fields in self._columns.values():
            for column in fields.values():
                with naming(column.path), column.path.open("rb") as file:
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
        """Return all of them: these."""
        return self

    def __getitem__(self, name: str) -> Mapping[str, np.ndarray]:
        return {field: column.array() for field, column in self._columns[name].items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
