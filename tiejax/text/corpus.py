"""A corpus: text files, folders, data sets of TFDS, or the prose that every CPython carries; and the sentences in it.

Reading files or the default needs neither a network nor TFDS, and nothing here needs TensorFlow.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import lazy_loader
import nupunkt

from tiejax.text.errors import CorpusError
from tiejax.text.files import TextFile, text_files
from tiejax.text.sources import TFDS, Source
from tiejax.text.standard_library import StandardLibrary

# What has no space for longer is no word, and finding sentences takes time that grows with its square.
LONGEST_WORD = 10_000
LONGER_WORD = re.compile(rf"(?<!\S)\S{{{LONGEST_WORD + 1},}}")

# TFDS is slow to import: it is imported at its first use.
data_sets = lazy_loader.load("tiejax.text.data_sets", suppress_warning=True)


def documents(corpus: Sequence[str], text_feature: str | None = None, tfds_dir: str | None = None) -> Iterator[str]:
    """Yield the texts of `corpus` in order: one a file, or one an example of a data set.

    corpus: files, folders (every .txt, .text, .md of them and .gz of these, by path), .gz files, `tfds:NAME[/CONFIG]`;
    empty for the documentation inside the standard library. text_feature: the feature to read where a data set has
    several. tfds_dir: where TFDS keeps its data sets. Raises CorpusError.
    """
    yield from read(sources(corpus, text_feature, tfds_dir))


def sources(
    corpus: Sequence[str],
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Source]:
    """Return where the documents of `corpus` come from, every one of them known to exist.

    A data set that TFDS has not prepared yet is downloaded and prepared, after `say` has said so.
    """
    if text_feature is not None and not any(name.startswith(TFDS) for name in corpus):
        raise CorpusError(f"text_feature {text_feature}: only a corpus {TFDS}NAME has features")
    if not corpus:
        return [StandardLibrary()]
    opened: list[Source] = []
    for name in corpus:
        if name.startswith(TFDS):
            opened.append(data_sets.open_data_set(name, text_feature, tfds_dir, say))
        else:
            opened.extend(TextFile(path) for path in text_files(name))
    return opened


def read(sources: Sequence[Source], seen: Callable[[int], None] = lambda taken: None) -> Iterator[str]:
    """Yield the documents of these sources; `seen` is told the bytes on disk that were read so far.

    Raises CorpusError if there is no text in any of them.
    """
    return (text for _, text in _read(sources, seen) if not is_blank(text))


def read_sequences(
    sources: Sequence[Source], rows: bool, seen: Callable[[int], None] = lambda taken: None
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the documents of these sources, each with the sequences that it is cut into: sentences, or its rows.

    rows: of a data set, every example is one, also a blank one; of a file, every line. Otherwise as `read`.
    """
    for source, text in _read(sources, seen):
        if rows:
            yield text, source.rows(text)
        elif not is_blank(text):
            yield text, sentences(text)


def is_blank(text: str) -> bool:
    """Return whether a text is nothing but white space."""
    return not text or text.isspace()


def _read(sources: Sequence[Source], seen: Callable[[int], None]) -> Iterator[tuple[Source, str]]:
    empty, taken = True, 0
    for source in sources:
        for document in source.documents():
            taken += document.taken
            seen(taken)
            empty = empty and is_blank(document.text)
            yield source, document.text
    if empty:
        names = [source.name for source in sources]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise CorpusError(f"corpus {shown}: there is no text in it")


def fingerprint(sources: Iterable[Source], seen: Callable[[int], None] = lambda taken: None) -> str:
    """Return the SHA-256 (hex) of what these sources hold, in order, whatever they are called."""
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
    """Return the sentences of a text, white space normalised; blank lines end a sentence, other line ends do not.

    A word of more than 10,000 characters is cut into words of that length.
    """
    # Punkt alone would join a heading to the paragraph below it.
    tokenize = nupunkt.load("default").tokenize
    lines = document.replace("\r\n", "\n").replace("\r", "\n")
    lines = LONGER_WORD.sub(_cut, lines)
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", lines))
    parts = (sentence.strip() for paragraph in paragraphs if paragraph for sentence in tokenize(paragraph))
    return [sentence for sentence in parts if sentence]


def _cut(word: re.Match[str]) -> str:
    return " ".join(word[0][start : start + LONGEST_WORD] for start in range(0, len(word[0]), LONGEST_WORD))
