"""Token sequences as a TFDS data set in array_record files, written and read without TensorFlow."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from jaxtyping import Int64, Integer
from tensorflow_datasets.core import shuffle
from tensorflow_datasets.core.utils import temporary_assignment, tqdm_utils
from tensorflow_datasets.proto import tf_example_pb2

from tiejax.text.errors import CorpusError, first_line
from tiejax.text.sources import TFDS

SPLITS = ("train", "validation", "test")
RECORDS = "records"  # the folder of the data set
READ_AT_ONCE = 16_384
PROGRESS_EVERY = 10_000

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


@contextlib.contextmanager
def without_progress_bar() -> Iterator[None]:
    """Context manager that turns off the progress bars of TFDS."""
    with temporary_assignment(tqdm_utils, "_active", False):
        yield


class LocalInfo(tfds.core.DatasetInfo):
    """Metadata of a data set that exists only on this machine."""

    def initialize_from_bucket(self) -> None:
        """Skip the look-up of published metadata on Google Cloud Storage, which leaves an empty temporary folder behind."""


class Records(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """TFDS data set of token sequences: one example per sequence, in order, with the feature `ids`.

    Args:
        name: name of the data set.
        splits: the sequences of each split.
        written: called with the number of examples written so far.
        data_dir: folder in which the data set is written.
    """

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, name: str, splits: Mapping[str, Sequences], written: Callable[[int], None], data_dir: str) -> None:
        self.name, self.splits, self.written = name, splits, written
        ends = np.cumsum([len(sequences.offsets) - 1 for sequences in splits.values()]).tolist()
        self.before = dict(zip(splits, [0, *ends], strict=False))
        super().__init__(data_dir=data_dir, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        # Encoded as bytes, since a list of integers takes seven times as long to parse without TensorFlow.
        ids = tfds.features.Tensor(shape=(None,), dtype=self.splits[SPLITS[0]].ids.dtype, encoding="bytes")
        return LocalInfo(builder=self, features=tfds.features.FeaturesDict({"ids": ids}), disable_shuffling=True)

    def _split_generators(self, dl_manager: object) -> dict[str, Iterator[tuple[int, dict[str, np.ndarray]]]]:
        return {name: self._generate_examples(name) for name in self.splits}

    def _generate_examples(self, name: str) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        ids, offsets = self.splits[name]
        for index, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            if index % PROGRESS_EVERY == 0:
                self.written(self.before[name] + index)
            yield index, {"ids": ids[start:end]}

    def _log_download_bytes(self) -> None:
        """Print nothing: nothing is downloaded."""

    def _log_download_done(self) -> None:
        """Print nothing: the caller reports progress."""


# Errors of the operating system that the C++ writer names only in its messages.
CAUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


def write(folder: Path, name: str, splits: Mapping[str, Sequences], progress: Progress) -> None:
    """Write the splits to `folder` as a data set called `name`, then read them back to verify them; raises OSError."""
    total = sum(len(sequences.offsets) - 1 for sequences in splits.values())
    try:
        # TFDS buffers splits above 1 GB in files, for which it needs TensorFlow.
        with without_progress_bar(), temporary_assignment(shuffle, "MAX_MEM_BUFFER_SIZE", sys.maxsize):
            builder = Records(name, splits, lambda number: progress("writing", number, total), str(folder / RECORDS))
            builder.download_and_prepare(file_format="array_record")
        progress("writing", total, total)
        for split, sequences in splits.items():
            written = read_split(folder, split, sequences.ids.dtype)
            if not all(np.array_equal(*pair) for pair in zip(sequences, written, strict=True)):
                raise OSError(f"split {split}: the data read back differ from the data written; check the disk and start again")
    except OSError:
        raise
    # The C++ writer of array_record raises exceptions of any type.
    except Exception as error:
        reason = first_line(error)
        cause = next((number for number in CAUSES if os.strerror(number) in reason), None)
        raise (OSError(reason) if cause is None else OSError(cause, os.strerror(cause))) from error


def read_split(folder: Path, split: str, dtype: np.dtype[Any]) -> Sequences:
    """Return a split of the records in `folder`, in the order in which it was written."""
    (version,) = (folder / RECORDS).glob("*/*/dataset_info.json")
    values = [value for (value,) in byte_values(tfds.builder_from_directory(version.parent), split, "ids")]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) // dtype.itemsize, out=offsets[1:])
    return Sequences(np.frombuffer(b"".join(values), dtype), offsets)


def byte_values(builder: Any, split: str, feature: str) -> Iterator[Sequence[bytes]]:
    """Yield the byte strings of one feature for each example of an array_record split; other features are not decoded.

    builder: a TFDS builder. Raises CorpusError if the records cannot be read.
    """
    parse = tf_example_pb2.Example.FromString
    try:
        for shard in builder.info.splits[split].filepaths:
            # Twice as fast as the data source of TFDS, which reads the same ranges.
            with contextlib.closing(ArrayRecordReader(str(shard))) as reader:
                number = reader.num_records()
                for start in range(0, number, READ_AT_ONCE):
                    for record in reader.read(start, min(start + READ_AT_ONCE, number)):
                        yield parse(record).features.feature[feature].bytes_list.value
    # The C++ readers raise exceptions of any type.
    except Exception as error:
        raise CorpusError(f"corpus {TFDS}{builder.info.name}: split {split} cannot be read: {first_line(error)}") from None
