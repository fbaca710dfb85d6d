"""Sequences of tokens, by split: their type, and their files in the format of numpy."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer

SPLITS = ("train", "validation", "test")

# Called with (phase, done, total) from time to time.
Progress = Callable[[str, int, int | None], None]


def ignore(*_: object) -> None:
    """No-op callback for messages and progress."""


class Sequences(NamedTuple):
    """Concatenated sequences of tokens: sequence i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Integer[np.ndarray, " tokens"]
    offsets: Int64[np.ndarray, " sequences+1"]


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    """Return the integer dtype for storing the ids of a vocabulary of `vocabulary` tokens."""
    return np.dtype(np.uint16 if vocabulary <= 2**16 else np.int32)


def write(folder: Path, splits: Mapping[str, Sequences], progress: Progress) -> None:
    """Write splits to `folder` as `SPLIT.ids.npy` and `SPLIT.offsets.npy`, and verify them by reading; raises OSError."""
    total, done = sum(len(sequences.ids) for sequences in splits.values()), 0
    for split, sequences in splits.items():
        progress("writing", done, total)
        for field, array in sequences._asdict().items():
            with _file(folder, split, field).open("wb") as file:
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
                file.write(np.ascontiguousarray(array).data)  # numpy's own writer drops the number of an OSError
        if not all(np.array_equal(*pair) for pair in zip(sequences, read_split(folder, split), strict=True)):
            raise OSError(f"split {split}: the data read back differ from the data written; check the disk and start again")
        done += len(sequences.ids)
    progress("writing", total, total)


def read_split(folder: Path, split: str) -> Sequences:
    """Return a split of the sequences in `folder`."""
    return Sequences(*(np.load(_file(folder, split, field)) for field in Sequences._fields))


def _file(folder: Path, split: str, field: str) -> Path:
    return folder / f"{split}.{field}.npy"
