"""Text files, and folders of them, as documents."""

import os
from collections.abc import Iterator
from pathlib import Path

from tiejax.system.files import check_file, read_bytes, unpacked
from tiejax.text.errors import CorpusError
from tiejax.text.sources import Document, Source, file_size

SUFFIXES = (".txt", ".text", ".md")


def is_text(file: str) -> bool:
    """Return whether a file of this name is read where its folder is a corpus."""
    return file.lower().removesuffix(".gz").endswith(SUFFIXES)


def text_files(name: str) -> list[Path]:
    """Return the file of this name, or the text files of the folder, by path; raises CorpusError if there are none."""
    path = Path(name)
    try:
        if not path.exists():
            raise CorpusError(f"corpus {name}: there is no such file or folder")
        if not path.is_dir():
            check_file(path)
            return [path]
        files = [Path(folder, file) for folder, _, files in os.walk(path, onerror=_raise) for file in files if is_text(file)]
    except OSError as error:
        raise CorpusError(f"corpus {error.filename or name}: cannot be read: {error.strerror}") from None
    if not files:
        wanted = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise CorpusError(f"corpus {name}: the folder holds no {wanted} nor any .gz of these")
    return sorted(files, key=lambda file: file.relative_to(path).parts)


def _raise(error: OSError) -> None:
    raise error


class TextFile(Source):
    """One document: a file in UTF-8, or such a file as .gz."""

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
    """Return the text in the bytes of a file, UTF-8 without a byte order mark; packed: they are gzip's.

    Raises ValueError that says why there is none.
    """
    content, where = (unpacked(raw), "unpacked byte") if packed else (raw, "byte")
    if (at := content.find(b"\0")) >= 0:
        raise ValueError(f"{where} {at} is NUL: a binary file, or text that is not UTF-8")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        value = content[error.start]
        raise ValueError(f"{where} {error.start} is not UTF-8 (0x{value:02x}: {error.reason})") from None
