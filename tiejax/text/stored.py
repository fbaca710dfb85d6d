"""Sets of tokens on disk: made once under a lock, whole or not at all, stored by TFDS as array_record, checked when opened.

Neither writing nor reading needs TensorFlow.
"""

# TFDS carries no types.

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Int64, Integer
from tensorflow_datasets.core import shuffle

from tiejax.text import corpus as corpora
from tiejax.text.corpus import CorpusError, first_line

SPLITS = ("train", "validation", "test")
MANIFEST, TOKENIZER, RECORDS = "manifest.json", "tokenizer.json", "records"
INCOMPLETE = "incomplete-"
OPTION = "--data_dir"
TOLD_EVERY = 10_000

# Told (phase, done, total) now and then.
Progress = Callable[[str, int, int | None], None]


class Sequences(NamedTuple):
    """Sequences of tokens, one after the other: `ids[offsets[i]:offsets[i + 1]]` is the i-th."""

    ids: Integer[np.ndarray, "tokens"]
    offsets: Int64[np.ndarray, "sequences+1"]


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    """Return the integers that so many ids are stored in."""
    return np.dtype(np.uint16 if vocabulary <= 2**16 else np.int32)


# The folder.


@contextlib.contextmanager
def workplace(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make the folder and hold it against other processes, cleared of what a killed one left.

    say: is told where another process has to be waited for. What the disk refuses inside becomes a CorpusError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder, say):
            for left in folder.glob(f"{INCOMPLETE}*"):
                _remove(left)
            yield
    except OSError as error:
        raise CorpusError(f"{OPTION} {folder}: {error.strerror or first_line(error)}") from None


@contextlib.contextmanager
def _held(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        say(f"another process prepares text in {folder}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def built(target: Path) -> Iterator[Path]:
    """Give a folder beside `target` that becomes it, as one act, where nothing is raised."""
    incomplete = target.with_name(f"{INCOMPLETE}{target.name}")
    try:
        incomplete.mkdir()
        yield incomplete
        os.replace(incomplete, target)
    finally:
        _remove(incomplete)


def once_trained(folder: Path, name: str, train: Callable[[], bytes]) -> bytes:
    """Return the tokenizer.json that was trained under this name, or now is; its file has its hash, so that damage shows."""
    stem = f"tokenizer-{name}-"
    for path in sorted(folder.glob(f"{stem}*.json")):
        if path.name != f"{stem}{_sha256(path)[:16]}.json":
            raise CorpusError(f"{OPTION} {folder}: {path.name} is damaged; remove it, and what was prepared with it is lost")
        return path.read_bytes()
    stored = train()
    path = folder / f"{stem}{hashlib.sha256(stored).hexdigest()[:16]}.json"
    beside = folder / f"{INCOMPLETE}{path.name}"
    try:
        beside.write_bytes(stored)
        os.replace(beside, path)
    finally:
        _remove(beside)
    return stored


# The records.


class Records(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """Sequences of tokens as a TFDS data set of some name: one example a sequence, in order, with the feature `ids`."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, name: str, splits: Mapping[str, Sequences], written: Callable[[int], None], data_dir: str) -> None:
        self.name, self.splits, self.written = name, splits, written
        ends = np.cumsum([len(sequences.offsets) - 1 for sequences in splits.values()]).tolist()
        self.before = dict(zip(splits, [0, *ends], strict=False))
        super().__init__(data_dir=data_dir, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        # As bytes: a list of integers takes seven times as long to parse without TensorFlow.
        ids = tfds.features.Tensor(shape=(None,), dtype=self.splits[SPLITS[0]].ids.dtype, encoding="bytes")
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"ids": ids}), disable_shuffling=True)

    def _split_generators(self, dl_manager: object) -> dict[str, Iterator[tuple[int, dict[str, np.ndarray]]]]:
        return {name: self._generate_examples(name) for name in self.splits}

    def _generate_examples(self, name: str) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        ids, offsets = self.splits[name]
        for index, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            if index % TOLD_EVERY == 0:
                self.written(self.before[name] + index)
            yield index, {"ids": ids[start:end]}

    def _log_download_bytes(self) -> None:
        """Print nothing: nothing is downloaded."""

    def _log_download_done(self) -> None:
        """Print nothing."""


def write(folder: Path, name: str, splits: Mapping[str, Sequences], progress: Progress) -> None:
    """Write the splits into the folder as records of a data set of this name, and read them again; raises OSError."""
    total = sum(len(sequences.offsets) - 1 for sequences in splits.values())
    tfds.disable_progress_bar()
    try:
        # Above 1 GB, TFDS would set a split aside in files, which it can do only with TensorFlow.
        with tfds.core.utils.temporary_assignment(shuffle, "MAX_MEM_BUFFER_SIZE", sys.maxsize):
            builder = Records(name, splits, lambda number: progress("writing", number, total), str(folder / RECORDS))
            builder.download_and_prepare(file_format="array_record")
        progress("writing", total, total)
        for split, sequences in splits.items():
            found = read_split(folder, split, sequences.ids.dtype)
            if not all(np.array_equal(*pair) for pair in zip(sequences, found, strict=True)):
                raise OSError(f"split {split} was not written whole")
    except OSError:
        raise
    # The writer of array_record is C++ and raises what it likes.
    except Exception as error:
        raise OSError(first_line(error)) from error


def read_split(folder: Path, split: str, dtype: np.dtype[Any]) -> Sequences:
    """Return a split of the records in the folder, in the order in which it was written."""
    (version,) = (folder / RECORDS).glob("*/*/dataset_info.json")
    values = [value for (value,) in corpora.byte_values(tfds.builder_from_directory(version.parent), split, "ids")]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) // dtype.itemsize, out=offsets[1:])
    return Sequences(np.frombuffer(b"".join(values), dtype), offsets)


# The manifest.


def digest(content: object) -> str:
    """Return the SHA-256 (hex) of something that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, fingerprint: str, facts: dict[str, Any]) -> None:
    """Write the manifest: the fingerprint, the facts, and sizes and hashes of every file in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths}
    content = {"fingerprint": fingerprint, "facts": facts, "files": files}
    beside = folder / f".{MANIFEST}.part"
    beside.write_text(json.dumps({**content, "digest": digest(content)}, indent=1))
    os.replace(beside, folder / MANIFEST)


def opened(folder: Path, fingerprint: str) -> dict[str, Any]:
    """Return the facts of a sealed folder, with its `bytes`, after every file was checked; raises CorpusError."""

    def damaged(file: str, what: str) -> CorpusError:
        return CorpusError(
            f"{OPTION} {folder.parent}: {file} in {folder} {what}; remove the folder {folder} to prepare it anew"
        )

    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        expected_digest = content.pop("digest")
        files, facts = content["files"], content["facts"]
    except FileNotFoundError:
        raise damaged(MANIFEST, "is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(MANIFEST, "is damaged") from None
    if expected_digest != digest(content) or content["fingerprint"] != fingerprint:
        raise damaged(MANIFEST, "is damaged")
    for file, expected in files.items():
        path = folder / file
        if not path.is_file():
            raise damaged(file, "is missing")
        if (size := path.stat().st_size) != expected["bytes"]:
            raise damaged(file, f"has {size} bytes instead of {expected['bytes']}")
        if _sha256(path) != expected["sha256"]:
            raise damaged(file, "is damaged")
    return {**facts, "bytes": sum(file["bytes"] for file in files.values())}
