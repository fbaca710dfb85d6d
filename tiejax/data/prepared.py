"""A corpus as sentences of pieces: tokenised once, stored by TFDS as array_record, and opened again in a moment.

Neither writing nor reading needs TensorFlow.
"""

# TFDS carries no types.

import array
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import tensorflow_datasets as tfds
import tokenizers
from jaxtyping import Int64, Integer
from tensorflow_datasets.core import shuffle

from tiejax.data import corpus as corpora
from tiejax.data import tokenizer as tokenization
from tiejax.data.corpus import CorpusError, first_line
from tiejax.data.tokenizer import Vocabulary

SPLITS = ("train", "validation", "test")
# Of every ten sentences, where each split ends.
ENDS = (7, 8, 10)
# To be raised whenever the same text would give other sentences than before.
FORMAT = 1
MANIFEST, TOKENIZER, RECORDS = "manifest.json", "tokenizer.json", "records"
INCOMPLETE = "incomplete-"
OPTION = "--data_dir"
TOKENISED_AT_ONCE = 4096
TOLD_EVERY = 10_000


class Sentences(NamedTuple):
    """The sentences of a split: `ids[offsets[i]:offsets[i + 1]]` is the i-th, [CLS] and [SEP] included."""

    ids: Integer[np.ndarray, "pieces"]
    offsets: Int64[np.ndarray, "sentences+1"]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared set on disk, checked against its manifest when it was opened.

    fingerprint: SHA-256 (hex) of text, tokenizer and settings. facts: counts, in characters, sentences and pieces, and
    where they come from, as JSON can hold them.
    """

    folder: Path
    fingerprint: str
    tokenizer_file: Path
    vocabulary: Vocabulary
    facts: dict[str, Any]

    def split(self, name: str) -> Sentences:
        """Return the sentences of "train", "validation" or "test", in the order of the corpus."""
        return _read_split(self.folder, name, _dtype(self.vocabulary))


def _nothing(*_: object) -> None:
    pass


def prepare(
    corpus: Sequence[str],
    tokenizer: str | None,
    vocab_size: int,
    max_length: int,
    min_length: int,
    folder: Path,
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    say: Callable[[str], None] = _nothing,
    progress: Callable[[str, int, int | None], None] = _nothing,
) -> Prepared:
    """Return the corpus as sentences of pieces, prepared in `folder` or found there.

    The first 70 % of the sentences are for training, the next 10 % for validation, the last 20 % for tests.

    corpus, text_feature, tfds_dir: as in `corpus.documents`. tokenizer: as in `tokenizer.load`; None for a WordPiece
    vocabulary of `vocab_size` pieces, trained once for each text. max_length, min_length: pieces of a sentence with [CLS]
    and [SEP]; longer ones are cut, shorter ones dropped, and always those of no other piece. say: is told in one line
    what the user should know. progress: is told (phase, done, total) now and then. Raises CorpusError, also where the
    disk is full.
    """
    if max_length < 3:
        raise CorpusError(f"--max_length {max_length}: must be 3 at least, for [CLS], a piece and [SEP]")
    if min_length > max_length:
        raise CorpusError(f"--min_length {min_length}: is above --max_length {max_length}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder, say):
            for left in folder.glob(f"{INCOMPLETE}*"):
                _remove(left)
            sources = corpora.sources(corpus, text_feature, tfds_dir, say)
            text = corpora.fingerprint(sources, _told(progress, "reading", sources))
            if tokenizer is None:
                told = _told(progress, "training the tokenizer", sources)
                stored = _trained(folder, text, vocab_size, lambda: corpora.read(sources, told)).read_bytes()
            else:
                stored = tokenization.load(tokenizer).to_str().encode()
            settings = {
                "format": FORMAT,
                "nupunkt": importlib.metadata.version("nupunkt"),
                "text_sha256": text,
                "tokenizer_sha256": hashlib.sha256(stored).hexdigest(),
                "max_length": max_length,
                "min_length": min_length,
            }
            fingerprint = _digest(settings)
            target = folder / f"sentences-{fingerprint[:16]}"
            if not target.exists():
                say(f"preparing the text in {target}")
                _build(target, sources, stored, fingerprint, settings, progress)
            trained = f"WordPiece, at most {vocab_size} pieces, trained on this text"
            return _opened(target, fingerprint, {"corpus": list(corpus), "tokenizer": tokenizer or trained})
    except OSError as error:
        raise CorpusError(f"{OPTION} {folder}: {error.strerror or first_line(error)}") from None


def _told(
    progress: Callable[[str, int, int | None], None], phase: str, sources: Iterable[corpora.Source]
) -> Callable[[int], None]:
    size = sum(source.size for source in sources)
    return lambda taken: progress(phase, taken, size)


def _build(
    target: Path,
    sources: list[corpora.Source],
    stored: bytes,
    fingerprint: str,
    settings: dict[str, Any],
    progress: Callable[[str, int, int | None], None],
) -> None:
    """Prepare the set beside its place and move it there as one act."""
    incomplete = target.with_name(f"{INCOMPLETE}{target.name}")
    try:
        incomplete.mkdir()
        (incomplete / TOKENIZER).write_bytes(stored)
        model = tokenization.load(str(incomplete / TOKENIZER))
        vocabulary = tokenization.vocabulary(model)
        texts = corpora.read(sources, _told(progress, "tokenising", sources))
        pieces, counts = _tokenised(texts, model, vocabulary, settings["max_length"], settings["min_length"])
        if corpora.fingerprint(sources) != settings["text_sha256"]:
            raise CorpusError("--corpus: changed while it was read; start again")
        _write(incomplete, pieces, progress)
        _seal(incomplete, {"fingerprint": fingerprint, "facts": {**settings, **counts, "vocabulary": vocabulary.size}})
        os.replace(incomplete, target)
    finally:
        _remove(incomplete)


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


def _trained(folder: Path, text: str, vocab_size: int, texts: Callable[[], Iterable[str]]) -> Path:
    """The file of the tokenizer that was trained on this text, or now is; its name has its hash, so that damage shows."""
    stem = f"tokenizer-{text[:16]}-{vocab_size}-"
    for path in sorted(folder.glob(f"{stem}*.json")):
        if path.name != f"{stem}{_sha256(path)[:16]}.json":
            raise CorpusError(f"{OPTION} {folder}: {path.name} is damaged; remove it, and what was prepared with it is lost")
        return path
    stored = tokenization.train(texts(), vocab_size).to_str().encode()
    path = folder / f"{stem}{hashlib.sha256(stored).hexdigest()[:16]}.json"
    beside = folder / f"{INCOMPLETE}{path.name}"
    try:
        beside.write_bytes(stored)
        os.replace(beside, path)
    finally:
        _remove(beside)
    return path


def _tokenised(
    texts: Iterable[str], tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary, max_length: int, min_length: int
) -> tuple[dict[str, Sentences], dict[str, Any]]:
    ids, lengths = array.array(_dtype(vocabulary).char), array.array("i")
    letters = array.array("q")
    documents = characters = dropped = cut = 0
    for text in texts:
        documents += 1
        characters += len(text)
        found = corpora.sentences(text)
        for start in range(0, len(found), TOKENISED_AT_ONCE):
            batch = found[start : start + TOKENISED_AT_ONCE]
            encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            for sentence, encoding in zip(batch, encoded, strict=True):
                pieces = encoding.ids
                cut += len(pieces) > max_length - 2
                pieces = [vocabulary.cls, *pieces[: max_length - 2], vocabulary.sep]
                if len(pieces) < max(min_length, 3):
                    dropped += 1
                    continue
                ids.extend(pieces)
                lengths.append(len(pieces))
                letters.append(len(sentence))
    number = len(lengths)
    if number == 0:
        raise CorpusError(f"--corpus: no sentence long enough: none of {dropped} has {min_length} pieces or more")
    ends = [number * end // ENDS[-1] for end in ENDS]
    starts = [0, *ends[:-1]]
    if any(start == end for start, end in zip(starts, ends, strict=True)):
        raise CorpusError(f"--corpus: {number} sentences of {min_length} pieces or more are too few to be split 70/10/20")
    flat = np.frombuffer(ids, _dtype(vocabulary))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    split = {
        name: Sentences(flat[offsets[start] : offsets[end]], offsets[start : end + 1] - offsets[start])
        for name, start, end in zip(SPLITS, starts, ends, strict=True)
    }
    facts = {
        "documents": documents,
        "characters": characters,
        "dropped": dropped,
        "cut": cut,
        "splits": {
            name: {
                "sentences": end - start,
                "pieces": len(split[name].ids),
                "characters": int(np.sum(letters[start:end], dtype=np.int64)),
            }
            for name, start, end in zip(SPLITS, starts, ends, strict=True)
        },
    }
    return split, facts


def _dtype(vocabulary: Vocabulary) -> np.dtype[Any]:
    return np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)


# The records.


class TextSentences(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """Sentences of pieces as a TFDS data set: one example a sentence, in order, with the feature `ids`."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, splits: Mapping[str, Sentences], written: Callable[[int], None], data_dir: str) -> None:
        self.splits, self.written = splits, written
        ends = np.cumsum([len(sentences.offsets) - 1 for sentences in splits.values()]).tolist()
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


def _write(folder: Path, splits: Mapping[str, Sentences], progress: Callable[[str, int, int | None], None]) -> None:
    total = sum(len(sentences.offsets) - 1 for sentences in splits.values())
    tfds.disable_progress_bar()
    try:
        # Above 1 GB, TFDS would set a split aside in files, which it can do only with TensorFlow.
        with tfds.core.utils.temporary_assignment(shuffle, "MAX_MEM_BUFFER_SIZE", sys.maxsize):
            builder = TextSentences(splits, lambda number: progress("writing", number, total), str(folder / RECORDS))
            builder.download_and_prepare(file_format="array_record")
        progress("writing", total, total)
        for name, sentences in splits.items():
            found = _read_split(folder, name, sentences.ids.dtype)
            if not all(np.array_equal(*pair) for pair in zip(sentences, found, strict=True)):
                raise OSError(f"split {name} was not written whole")
    except OSError:
        raise
    # The writer of array_record is C++ and raises what it likes.
    except Exception as error:
        raise OSError(first_line(error)) from error


def _read_split(folder: Path, name: str, dtype: np.dtype[Any]) -> Sentences:
    (version,) = (folder / RECORDS).glob("*/*/dataset_info.json")
    values = [value for (value,) in corpora.byte_values(tfds.builder_from_directory(version.parent), name, "ids")]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) // dtype.itemsize, out=offsets[1:])
    return Sentences(np.frombuffer(b"".join(values), dtype), offsets)


# The manifest.


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(folder: Path, content: dict[str, Any]) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths}
    content = {**content, "files": files}
    beside = folder / f".{MANIFEST}.part"
    beside.write_text(json.dumps({**content, "digest": _digest(content)}, indent=1))
    os.replace(beside, folder / MANIFEST)


def _opened(folder: Path, fingerprint: str, asked: dict[str, Any]) -> Prepared:
    def damaged(file: str, what: str) -> CorpusError:
        return CorpusError(
            f"{OPTION} {folder.parent}: {file} in {folder} {what}; remove the folder {folder} to prepare it anew"
        )

    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        digest = content.pop("digest")
        files, facts = content["files"], content["facts"]
    except FileNotFoundError:
        raise damaged(MANIFEST, "is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(MANIFEST, "is damaged") from None
    if digest != _digest(content) or content["fingerprint"] != fingerprint:
        raise damaged(MANIFEST, "is damaged")
    for file, expected in files.items():
        path = folder / file
        if not path.is_file():
            raise damaged(file, "is missing")
        if (size := path.stat().st_size) != expected["bytes"]:
            raise damaged(file, f"has {size} bytes instead of {expected['bytes']}")
        if _sha256(path) != expected["sha256"]:
            raise damaged(file, "is damaged")
    tokenizer_file = folder / TOKENIZER
    vocabulary = tokenization.vocabulary(tokenization.load(str(tokenizer_file)))
    facts = {**asked, **facts, "bytes": sum(file["bytes"] for file in files.values())}
    return Prepared(folder, fingerprint, tokenizer_file, vocabulary, facts)
