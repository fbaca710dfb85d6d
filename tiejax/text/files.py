"""Text files and folders of text files as sources of documents."""

import os
from collections.abc import Iterator
from pathlib import Path

from tiejax.system.files import check_file, gunzip, read_bytes
from tiejax.text.errors import CorpusError
from tiejax.text.sources import TFDS, Document, Source, file_size

# Files of records, whose names and marks would be read as text.
TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
SUFFIXES = (".txt", ".text", ".md", ".tokens", ".raw")  # the last two: files of WikiText as published


def is_text(file: str) -> bool:
    """Return whether the name of a file marks it as text, so that it is read when its folder is a corpus."""
    return file.lower().removesuffix(".gz").endswith(SUFFIXES)


def text_files(name: str) -> list[Path]:
    """Return the file itself, or the text files of a folder and its subfolders, sorted by path.

    Links are followed; hidden files and folders, whose names begin with a dot, are left out. Raises CorpusError if there are
    no files, or for a link to a folder that contains it.
    """
    path = Path(name)
    try:
        if not path.exists():
            raise CorpusError(f"corpus {name}: not found; name a file, a folder or {TFDS}NAME")
        if not path.is_dir():
            check_file(path)
            if path.name.lower().removesuffix(".gz").endswith(TABLES):
                raise CorpusError(f"corpus {name}: a file of records; extract their texts into a .txt file")
            return [path]
        files = list(_found(path))
    except OSError as error:
        raise CorpusError(f"corpus {error.filename or name}: cannot be read: {error.strerror}") from None
    if not files:
        wanted = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise CorpusError(f"corpus {name}: the folder contains no {wanted}, with or without .gz")
    return sorted(files, key=lambda file: file.relative_to(path).parts)


def _found(path: Path) -> Iterator[Path]:
    """Yield the text files of a folder and its subfolders; raises CorpusError for a link to a folder that contains it."""
    for folder, inside, files in os.walk(path, onerror=_raise, followlinks=True):
        inside[:] = [name for name in inside if not name.startswith(".")]
        for name in inside:
            if (link := Path(folder, name)).is_symlink() and Path(folder).resolve().is_relative_to(link.resolve()):
                raise CorpusError(f"corpus {link}: is a link to a folder that contains it")
        yield from (Path(folder, file) for file in files if is_text(file) and not file.startswith("."))


def _raise(error: OSError) -> None:
    raise error


class TextFile(Source):
    """A text file in UTF-8, possibly compressed with gzip, as a source with one document."""

    kind = "_TextFile"

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    @property
    def size(self) -> int:
        return file_size(self.path)

    def documents(self) -> Iterator[Document]:
        (raw,) = self.raw()
        try:
            text = text_of(raw, self.path.name.lower().endswith(".gz"))
        except ValueError as error:
            raise CorpusError(f"corpus {self.path}: {error}") from None
        yield Document(text, len(raw))

    def raw(self) -> Iterator[bytes]:
        try:
            yield read_bytes(self.path)
        except OSError as error:
            raise CorpusError(f"corpus {self.path}: cannot be read: {error.strerror}") from None


def text_of(raw: bytes, packed: bool) -> str:
    """Decode the bytes of a UTF-8 file and strip a byte order mark. packed: whether they are compressed with gzip.

    Raises ValueError with the reason and the position if the bytes are not text.
    """
    content, where = (gunzip(raw), "unpacked byte") if packed else (raw, "byte")
    if (at := content.find(b"\0")) >= 0:
        raise ValueError(f"{where} {at} is NUL: a binary file, or text that is not UTF-8")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        value = content[error.start]
        raise ValueError(f"{where} {error.start} is not UTF-8 (0x{value:02x}: {error.reason})") from None
