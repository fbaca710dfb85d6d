"""Documents of a corpus (text files, folders, TFDS data sets, or the documentation inside CPython) and their sentences.

Reading files or the default corpus needs neither a network nor TFDS (the extra `tfds`). TensorFlow is never needed.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tiejax.system.visible import cut
from tiejax.text.errors import CorpusError
from tiejax.text.files import TextFile, text_files
from tiejax.text.sources import TFDS, Source, data_sets_for
from tiejax.text.standard_library import StandardLibrary

# Longer runs without a space are not words, and the time to find sentences grows with the square of their length.
LONGEST_WORD = 10_000
LONGER_WORD = re.compile(rf"(?<!\S)\S{{{LONGEST_WORD + 1},}}")


def sources(
    corpus: Sequence[str],
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Source]:
    """Return the sources of the documents of `corpus`; raises CorpusError if one does not exist.

    corpus: names of files (.gz is decompressed; records, as in .jsonl, are refused), of folders (their files with a suffix of
    `files.SUFFIXES`, optionally .gz, by path) or of data sets (`tfds:NAME[/CONFIG]`); empty for the documentation inside the
    standard library.
    text_feature: the text feature to read; required if a data set has several. tfds_dir: folder of the TFDS data sets
    (default: TFDS's own). say: called with a one-line message before a data set that TFDS has not prepared yet is downloaded
    and prepared.
    """
    if text_feature is not None and not any(name.startswith(TFDS) for name in corpus):
        raise CorpusError(f"text_feature {cut(text_feature)}: only a corpus {TFDS}NAME has features; remove the setting")
    if not corpus:
        return [StandardLibrary()]
    opened: list[Source] = []
    for name in corpus:
        if name.startswith(TFDS):
            opened.append(data_sets_for(name).open_data_set(name, text_feature, tfds_dir, say))
        else:
            opened.extend(TextFile(path) for path in text_files(name))
    return opened


def read(sources: Sequence[Source], seen: Callable[[int], None] = lambda taken: None) -> Iterator[str]:
    """Yield the non-blank documents of the sources in order: one per file, or one per example of a data set.

    seen: called with the number of bytes read from disk so far. Raises CorpusError if all documents are blank.
    """
    return (text for _, text in _read(sources, seen) if text.strip())


def read_sequences(sources: Sequence[Source], seen: Callable[[int], None], rows: bool) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the documents of the sources, each with its sequences: its sentences, or its rows if `rows`.

    The rows of a data set are its examples; the rows of a file are its lines. With `rows`, blank rows and documents are
    included; without, blank documents are skipped. seen, errors: as in `read`.
    """
    for source, text in _read(sources, seen):
        if rows:
            yield text, source.rows(text)
        elif text.strip():
            yield text, sentences(text)


def _read(sources: Sequence[Source], seen: Callable[[int], None]) -> Iterator[tuple[Source, str]]:
    empty, taken = True, 0
    for source in sources:
        for document in source.documents():
            taken += document.taken
            seen(taken)
            empty = empty and not document.text.strip()
            yield source, document.text
    if empty:
        names = [source.name for source in sources]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise CorpusError(f"corpus {shown}: contains no text")


def fingerprint(sources: Iterable[Source], seen: Callable[[int], None] = lambda taken: None) -> str:
    """Return the SHA-256 (hex) of the contents of the sources, in order; their names do not matter."""
    digest, taken = hashlib.sha256(), 0
    for source in sources:
        digest.update(source.kind.encode())
        for raw in source.raw():
            taken += len(raw)
            seen(taken)
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return digest.hexdigest()


def sentences(document: str) -> list[str]:
    """Split a text into sentences with normalised white space. Blank lines end a sentence, other line ends do not.

    Words of more than 10,000 characters are cut into pieces of that length.
    """
    import nupunkt  # here, since streams of text do not need it

    # Punkt alone would join a heading and the paragraph below it.
    tokenize = nupunkt.load("default").tokenize
    lines = document.replace("\r\n", "\n").replace("\r", "\n")
    lines = LONGER_WORD.sub(_in_pieces, lines)
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", lines))
    parts = (sentence.strip() for paragraph in paragraphs if paragraph for sentence in tokenize(paragraph))
    return [sentence for sentence in parts if sentence]


def _in_pieces(word: re.Match[str]) -> str:
    return " ".join(word[0][start : start + LONGEST_WORD] for start in range(0, len(word[0]), LONGEST_WORD))
