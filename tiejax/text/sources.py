"""Somewhere that documents come from: what every kind of corpus can do."""

import abc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

TFDS = "tfds:"  # what begins the name of a data set of TFDS


class Document(NamedTuple):
    """A text, and how many bytes on disk it took, for a progress bar."""

    text: str
    taken: int


class Source(abc.ABC):
    """Somewhere that documents come from.

    kind: part of a corpus's fingerprint, as it was first written: with another, prepared text would be prepared anew and runs
    could not be resumed. name: for messages.
    """

    kind: ClassVar[str]
    name: str

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Bytes on disk."""

    @abc.abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield its documents, always in the same order."""

    def rows(self, text: str) -> Iterator[str]:
        """Yield the rows of one of its documents: its lines, blank ones among them, however a line is ended."""
        for line in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):
            yield line[0].rstrip("\r\n")

    @abc.abstractmethod
    def raw(self) -> Iterator[bytes]:
        """Yield bytes that are the same only if the documents are: cheaper to hash than the documents."""


def file_size(path: Path) -> int:
    """Return the bytes of a file; 0 if it cannot be read, of which whoever reads it says what is wrong."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
