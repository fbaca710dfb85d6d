"""Labelled sentences from CoNLL-U, CSV, TSV and JSON lines files, or one text file per class; each may be compressed as .gz."""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tiejax.system.files import read_bytes
from tiejax.system.visible import cut
from tiejax.text.files import text_of
from tiejax.text.sources import TFDS, lines_of

CONLLU, JSON_LINES = (".conllu",), (".jsonl", ".json", ".ndjson")
SEPARATED = {".csv": ",", ".tsv": "\t"}
NO_SPACE, NO_TAG = "SpaceAfter=No", "_"
CLOSES, OPENS = re.compile(r"[,.;:!?%)\]}]+|['\u2019]\w*|n['\u2019]t", re.IGNORECASE), re.compile(r"[(\[{$]+")


class TaskError(ValueError):
    """A task or one of its files cannot be used. The message is one line that begins with the setting or file at fault."""


class Labelled(NamedTuple):
    """A sentence with one label per word if it is tagged, or one label if it is classified.

    words: the words, each with the space after it if there is one; the whole sentence as one string if it is classified.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sentence."""
        return "".join(self.words)


def suffix_of(file: str) -> str:
    """Return the suffix of a file name, ignoring .gz."""
    return Path(file.lower().removesuffix(".gz")).suffix


def is_tagged(file: str) -> bool:
    """Return whether the name of a file marks its sentences as tagged rather than classified."""
    return suffix_of(file) in CONLLU


def has_columns(file: str) -> bool:
    """Return whether the texts and labels of a file are columns, keys or features with names."""
    return file.startswith(TFDS) or suffix_of(file) in (*SEPARATED, *JSON_LINES)


def read_labelled(files: Sequence[str], text: str, label: str) -> list[Labelled]:
    """Return the labelled sentences of CoNLL-U, CSV, TSV or JSON lines files, or of several text files, one per class.

    text, label: columns of a table or keys of JSON objects. Words of CoNLL-U are labelled by UPOS. With several text files,
    every line is a sentence whose label is the name of its file. Raises TaskError, beginning with the file.
    """
    readers = {_reader(file) for file in files}
    if len(readers) > 1:
        raise TaskError(f"{', '.join(files)}: expected files of one format")
    if readers == {_lines}:
        if len(files) == 1:
            kinds = ", ".join((*CONLLU, *SEPARATED, *JSON_LINES))
            raise TaskError(
                f"{files[0]}: unknown format; expected a file ending in {kinds} (optionally .gz), or one text file per class"
            )
        if len({Path(file).name for file in files}) < len(files):
            raise TaskError(f"{', '.join(files)}: the names of text files, which are labels, must differ")
    found = {file: _sentences(file, text, label) for file in files}
    for file, sentences in found.items() if readers == {_tagged} else ():
        if bare := [sentence for sentence in sentences if NO_TAG in sentence.labels]:
            raise TaskError(f"{file}: a word of {cut(bare[0].text.strip())!r} has no UPOS; expected a tag for every word")
    return [sentence for sentences in found.values() for sentence in sentences]


def _reader(file: str) -> Callable[[str, str, str], Iterator[Labelled]]:
    """Return the function that reads a file of labelled sentences, by its name."""
    suffix = suffix_of(file)
    if suffix in CONLLU:
        return _tagged
    return _table if suffix in SEPARATED else _json_lines if suffix in JSON_LINES else _lines


def _sentences(file: str, text: str = "", label: str = "") -> list[Labelled]:
    """Return the labelled sentences of one file; raises TaskError if it has none."""
    found = list(_reader(file)(file, text, label))
    if not found:
        raise TaskError(f"{file}: contains no sentence")
    return found


def read_sentences(file: str) -> list[str]:
    """Return the sentences of a CoNLL-U file, or of a text file with one sentence per line; an empty line raises TaskError."""
    if is_tagged(file):
        return [sentence.text.strip() for sentence in _sentences(file)]
    lines = [" ".join(line.split()) for line in lines_of(_content(file).rstrip())] or [""]
    if "" in lines:
        raise TaskError(f"{file}: line {lines.index('') + 1} is empty; expected one sentence per line")
    return lines


def _content(file: str) -> str:
    try:
        return text_of(read_bytes(Path(file)), file.lower().endswith(".gz"))
    except FileNotFoundError:
        raise TaskError(f"{file}: not found") from None
    except OSError as error:
        raise TaskError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise TaskError(f"{file}: {error}") from None


def _lines(file: str, *_: str) -> Iterator[Labelled]:
    """Yield the lines of a text file that are not empty, labelled by its name."""
    for line in lines_of(_content(file)):
        if words := " ".join(line.split()):
            yield Labelled((words,), (Path(file).name,))


def _tagged(file: str, *_: str) -> Iterator[Labelled]:
    """Yield the sentences of a CoNLL-U file, tagged by UPOS, without empty nodes (such as 1.1)."""
    content = _content(file)
    spaced = NO_SPACE in content
    rows = list[list[str]]()
    for number, line in enumerate([*content.split("\n"), ""], 1):
        columns = line.rstrip("\r").split("\t")
        if columns == [""]:
            if rows:
                try:
                    yield _sentence(rows, spaced)
                except (KeyError, ValueError, IndexError):
                    raise TaskError(
                        f"{file}: the sentence ending at line {number} does not number its words 1, 2, 3, ..."
                    ) from None
            rows = []
        elif not line.startswith("#"):
            if len(columns) != 10:
                raise TaskError(
                    f"{file}: line {number} has {len(columns)} columns; expected the 10 of CoNLL-U, separated by tabs"
                )
            rows.append(columns)


def _sentence(rows: list[list[str]], spaced: bool) -> Labelled:
    """Return the words of a sentence, with their spaces, and the tags. rows: the columns of its lines.

    A multi-word token (1-2) joins its words if their concatenation spells it. spaced: whether the file marks missing spaces; if
    not, spaces are omitted before closing punctuation and clitics and after opening brackets.
    """
    numbers = [columns[0] for columns in rows if columns[0].isdigit()]
    words = {columns[0]: columns[1] for columns in rows if columns[0].isdigit()}
    if numbers != [str(number) for number in range(1, len(words) + 1)]:
        raise ValueError("words are not numbered 1, 2, 3, ...")
    tags = tuple(columns[3] for columns in rows if columns[0].isdigit())
    joined = {columns[0] for columns in rows if NO_SPACE in columns[9].split("|")}
    if not spaced:
        pairs = itertools.pairwise(words.items())
        joined = {number for (number, word), (_, behind) in pairs if CLOSES.fullmatch(behind) or OPENS.fullmatch(word)}
    for columns in rows:
        first, dash, last = columns[0].partition("-")
        if dash:
            if last not in words:  # check first: the range could be huge
                raise KeyError(last)
            inside = [str(number) for number in range(int(first), int(last) + 1)]
            if "".join(words[number] for number in inside) == columns[1]:
                joined |= set(inside[:-1])
            if spaced:  # the range has the mark for the space after its last word
                joined = joined | {last} if columns[0] in joined else joined - {last}
    joined.add(list(words)[-1])
    return Labelled(tuple(word if number in joined else f"{word} " for number, word in words.items()), tags)


def _table(file: str, text: str, label: str) -> Iterator[Labelled]:
    separator = SEPARATED[suffix_of(file)]
    # In TSV, quotation marks are ordinary characters.
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    content = io.StringIO(_content(file), newline="")
    rows: csv.DictReader[str] = csv.DictReader(content, delimiter=separator, quoting=quoting, strict=True)
    try:
        columns = list(rows.fieldnames or [])
        if wrong := [name for name in (text, label) if columns.count(name) != 1]:
            number_of = "no column" if wrong[0] not in columns else "several columns"
            raise TaskError(f"{file}: has {number_of} {cut(wrong[0])!r}; its columns are {cut(', '.join(columns)) or 'none'}")
        for number, row in enumerate(rows, 1):
            if None in row:
                raise TaskError(f"{file}: row {number} has more than {len(columns)} values; quote values with separators")
            if not row[text] or not row[label]:
                raise TaskError(f"{file}: row {number} has no value for {cut(text if not row[text] else label)!r}")
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
        values = (row.get(text), row.get(label)) if isinstance(row, dict) else (None, None)
        if not isinstance(values[0], str) or not isinstance(values[1], str | int) or "" in values:
            raise TaskError(
                f"{file}: line {number}: expected an object with {cut(text)!r}, a text, and {cut(label)!r}, text or integer"
            )
        sentence = Labelled((values[0],), (str(values[1]),))
        try:
            "".join((*sentence.words, *sentence.labels)).encode()
        except UnicodeEncodeError:  # JSON escapes can spell surrogates, which UTF-8 cannot
            raise TaskError(f"{file}: line {number} contains a lone surrogate, which is not a character") from None
        yield sentence
