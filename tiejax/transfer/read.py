"""Labelled sentences from files: CoNLL-U, CSV, TSV, JSON lines, a file per class; gzip of any of these."""

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tiejax.system.files import read_bytes
from tiejax.text.files import text_of
from tiejax.transfer.errors import TaskError

CONLLU, JSON_LINES = (".conllu",), (".jsonl", ".json", ".ndjson")
SEPARATED = {".csv": ",", ".tsv": "\t"}
NO_SPACE = "SpaceAfter=No"
CLOSES, OPENS = re.compile(r"[,.;:!?%)\]}]+|['\u2019]\w*|n['\u2019]t", re.IGNORECASE), re.compile(r"[(\[{$]+")


class Labelled(NamedTuple):
    """A sentence with its labels: one a word where it is tagged, or else one for all of it.

    words: of the sentence, each with the space behind it, if there is one; or all of it, as one.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sentence."""
        return "".join(self.words)


def suffix_of(file: str) -> str:
    """Return the suffix of a file's name, without that of gzip."""
    return Path(file.lower().removesuffix(".gz")).suffix


def is_tagged(file: str) -> bool:
    """Say whether a file of this name holds tagged sentences, and not classified ones."""
    return suffix_of(file) in CONLLU


def read_labelled(files: Sequence[str], text: str, label: str) -> list[Labelled]:
    """Return the labelled sentences of a CoNLL-U, CSV, TSV or JSON lines file, or of text files that are a class each.

    text, label: the columns of a table; a tagged word's label is its UPOS. Of several text files every line is a sentence and
    the file's name its label. Raises TaskError that begins with the file.
    """
    if all(map(is_tagged, files)):
        return [sentence for file in files for sentence in _tagged(file)]
    if len(files) > 1:
        return [Labelled((line,), (Path(file).name,)) for file in files for line in _lines(file)]
    (file,) = files
    if suffix_of(file) in SEPARATED:
        return list(_table(file, SEPARATED[suffix_of(file)], text, label))
    if suffix_of(file) in JSON_LINES:
        return list(_json_lines(file, text, label))
    kinds = ", ".join((*CONLLU, *SEPARATED, *JSON_LINES))
    raise TaskError(
        f"{file}: cannot tell what it holds; name a file that ends in {kinds} (or .gz of these), or a file per class"
    )


def read_sentences(file: str) -> list[str]:
    """Return the sentences of a file: one a line, or those of a CoNLL-U file. Raises TaskError, also for an empty line."""
    if is_tagged(file):
        return [sentence.text.strip() for sentence in _tagged(file)]
    lines = [" ".join(line.split()) for line in _content(file).rstrip().split("\n")]
    if "" in lines:
        raise TaskError(f"{file}: line {lines.index('') + 1} is empty; every line is a sentence")
    return lines


def _content(file: str) -> str:
    try:
        return text_of(read_bytes(Path(file)), file.lower().endswith(".gz"))
    except FileNotFoundError:
        raise TaskError(f"{file}: there is no such file") from None
    except OSError as error:
        raise TaskError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise TaskError(f"{file}: {error}") from None


def _lines(file: str) -> list[str]:
    lines = [" ".join(line.split()) for line in _content(file).split("\n")]
    if not any(lines):
        raise TaskError(f"{file}: there is no sentence in it")
    return [line for line in lines if line]


def _tagged(file: str) -> Iterator[Labelled]:
    """Yield the sentences of CoNLL-U, the tag of a word being its UPOS; empty nodes (1.1) are left out."""
    content = _content(file)
    spaced = NO_SPACE in content
    rows, empty = list[list[str]](), True
    for number, line in enumerate([*content.split("\n"), ""], 1):
        columns = line.rstrip("\r").split("\t")
        if columns == [""]:
            if rows:
                empty = False
                try:
                    yield _sentence(rows, spaced)
                except (KeyError, ValueError, IndexError):
                    raise TaskError(
                        f"{file}: the sentence that ends at line {number} does not number its words 1, 2, 3, ..."
                    ) from None
            rows = []
        elif not line.startswith("#"):
            if len(columns) != 10:
                raise TaskError(f"{file}: line {number} has {len(columns)} columns; CoNLL-U has 10, separated by tabs")
            rows.append(columns)
    if empty:
        raise TaskError(f"{file}: there is no sentence in it")


def _sentence(rows: list[list[str]], spaced: bool) -> Labelled:
    """Return the words of a sentence's lines with the spaces that the text has, and their tags.

    A multi-word token (1-2) is written as its words without a space, where they spell it. spaced: the file says where no space
    is; otherwise there is none before closing punctuation and clitics, nor after opening brackets.
    """
    numbers = [columns[0] for columns in rows if columns[0].isdigit()]
    words = {columns[0]: columns[1] for columns in rows if columns[0].isdigit()}
    if numbers != [str(number) for number in range(1, len(words) + 1)]:
        raise ValueError("words are not numbered one after the other")
    tags = tuple(columns[3] for columns in rows if columns[0].isdigit())
    joined = {columns[0] for columns in rows if NO_SPACE in columns[9].split("|")}
    if not spaced:
        pairs = itertools.pairwise(words.items())
        joined = {number for (number, word), (_, behind) in pairs if CLOSES.fullmatch(behind) or OPENS.fullmatch(word)}
    for columns in rows:
        first, dash, last = columns[0].partition("-")
        if dash:
            if last not in words:  # before so many numbers are written down
                raise KeyError(last)
            inside = [str(number) for number in range(int(first), int(last) + 1)]
            if "".join(words[number] for number in inside) == columns[1]:
                joined |= set(inside[:-1])
                joined = joined | {last} if columns[0] in joined else joined - {last}
    joined.add(list(words)[-1])
    return Labelled(tuple(word if number in joined else f"{word} " for number, word in words.items()), tags)


def _table(file: str, separator: str, text: str, label: str) -> Iterator[Labelled]:
    # Fields of TSV may hold quotation marks that quote nothing.
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    rows: csv.DictReader[str] = csv.DictReader(io.StringIO(_content(file), newline=""), delimiter=separator, quoting=quoting)
    columns = list(rows.fieldnames or [])
    if missing := [name for name in (text, label) if name not in columns]:
        raise TaskError(f"{file}: has no column {missing[0]}; its first line names {', '.join(columns) or 'none'}")
    try:
        for number, row in enumerate(rows, 1):
            if not row[text] or not row[label]:
                raise TaskError(f"{file}: row {number} has no {text if not row[text] else label}")
            yield Labelled((row[text],), (row[label],))
    except csv.Error as error:
        raise TaskError(f"{file}: line {rows.line_num} cannot be read as a table: {error}") from None


def _json_lines(file: str, text: str, label: str) -> Iterator[Labelled]:
    for number, line in enumerate(_content(file).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{file}: line {number} is not JSON: {error}") from None
        if not isinstance(row, dict) or row.get(text) in (None, "") or row.get(label) is None:
            raise TaskError(f"{file}: line {number} must be an object with {text} and {label}")
        sentence = Labelled((str(row[text]),), (str(row[label]),))
        try:
            "".join((*sentence.words, *sentence.labels)).encode()
        except UnicodeEncodeError:  # JSON can spell what UTF-8 cannot
            raise TaskError(f"{file}: line {number} spells half a character (a lone surrogate)") from None
        yield sentence
