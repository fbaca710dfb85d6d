"""The interface of the sources of documents that make up a corpus."""

import abc
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tiejax._lazy import needs
from tiejax.text.errors import CorpusError

TFDS = "tfds:"  # prefix of the names of TFDS data sets


class Document(NamedTuple):
    """A text. taken: the number of bytes that it takes on disk, for progress bars."""

    text: str
    taken: int


class Source(abc.ABC):
    """A source of documents.

    kind: part of the fingerprint of a corpus. It must never change, or text would be prepared again and runs could not be
    resumed. name: the name of the source in messages.
    """

    kind: ClassVar[str]
    name: str

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of bytes on disk."""

    @abc.abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield the documents, always in the same order."""

    def rows(self, text: str) -> Iterator[str]:
        """Yield the rows of a document: its lines (`lines_of`)."""
        return lines_of(text)

    @abc.abstractmethod
    def raw(self) -> Iterator[bytes]:
        """Yield bytes that determine the documents, for the fingerprint; cheaper than decoding the documents."""


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a text, including blank ones; lines end with LF, CR or CR LF."""
    for line in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):
        yield line[0].rstrip("\r\n")


def data_sets_for(name: str) -> Any:
    """Return the module `data_sets`, to open `tfds:NAME`: imported at its first use, since TFDS is optional and slow to import.

    Raises CorpusError if the extra `tfds` is not installed.
    """
    try:
        return importlib.import_module("tiejax.text.data_sets")
    except ModuleNotFoundError as error:
        raise CorpusError(f"corpus {name}: {needs(error)}") from None


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if it cannot be accessed; reading it later raises the error."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
