"""The texts of a corpus's three streams: named one by one, found in a folder that is split already, or cut from one text."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tiejax.text import corpus as corpora
from tiejax.text.array_records import SPLITS, Progress
from tiejax.text.errors import CorpusError
from tiejax.text.files import is_text
from tiejax.text.sources import TFDS, Source
from tiejax.text.stored import nothing

# Of every ten characters, where each stream of a corpus that is not split yet ends.
ENDS = (8, 9, 10)
# The names of the files of a corpus that is split already, as WikiText has them.
FILES = {"train": ("train",), "validation": ("valid", "validation", "dev"), "test": ("test",)}
FIELDS = ("corpus", "validation", "test")


def named(corpus: Sequence[str], validation: Sequence[str], test: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the names of training, validation and test texts; of the last two none where the first are to be cut.

    Raises CorpusError where one of validation and test is missing.
    """
    for missing, present, field, other in ((validation, test, "validation", "test"), (test, validation, "test", "validation")):
        if present and not missing:
            raise CorpusError(f"{field}: needed, since {other} is given; without both of them the corpus is cut 80/10/10")
    if len(corpus) == 1 and not validation and (files := _split_already(corpus[0])):
        return [files["train"]], [files["validation"]], [files["test"]]
    return list(corpus), list(validation), list(test)


def _split_already(name: str) -> dict[str, str] | None:
    """Return the files of a folder that holds one for each stream, or None if it does not."""
    try:
        files = sorted(path for path in Path(name).iterdir() if path.is_file() and is_text(path.name))
    except OSError:
        return None  # no folder, or whoever reads it says what is wrong
    by_split = {
        split: [path for path in files if path.name.lower().removesuffix(".gz").rpartition(".")[0] in stems]
        for split, stems in FILES.items()
    }
    if not all(by_split.values()):
        return None
    for split, paths in by_split.items():
        if len(paths) > 1:
            several = " and ".join(path.name for path in paths)
            raise CorpusError(f"corpus {name}: holds {several}, of which one can be the {split} stream; name the files")
    return {split: str(path) for split, (path,) in by_split.items()}


class Passage(NamedTuple):
    """A text of a stream, or the part of one. begins: whether it is the first part."""

    split: str
    text: str
    begins: bool = True


class FieldText(NamedTuple):
    """Sources to be read one after the other; what is wrong with them is said of `field`."""

    field: str
    sources: list[Source]

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)


@dataclasses.dataclass(frozen=True)
class SplitTexts:
    """The texts of the three streams, or the one that is to be cut."""

    texts: list[FieldText]
    progress: Progress

    @property
    def to_be_cut(self) -> bool:
        return len(self.texts) == 1

    @property
    def size(self) -> int:
        return sum(text.size for text in self.texts)

    def fingerprints(self) -> list[str]:
        """Return the fingerprint of every text."""
        hashes = []
        for text, told in self._told("reading"):
            with _blamed(text.field):
                hashes.append(corpora.fingerprint(text.sources, told))
        return hashes

    def check(self, fingerprints: Sequence[str]) -> None:
        """Raise CorpusError if a text has another fingerprint than before."""
        again = dataclasses.replace(self, progress=nothing).fingerprints()
        for text, before, now in zip(self.texts, fingerprints, again, strict=True):
            if now != before:
                raise CorpusError(f"{text.field}: changed while it was read; start again")

    def of_training(self) -> Iterator[str]:
        """Yield the texts of the training stream."""
        phase = "training the tokenizer"
        for passage in self.passages(phase):
            if passage.split != SPLITS[0]:
                break
            yield passage.text
        self.progress(phase, self.size, self.size)

    def passages(self, phase: str) -> Iterator[Passage]:
        """Yield every text in order; of one that is cut, a passage for each split that has a part of it."""
        if self.to_be_cut:
            ends = [self._characters * end // ENDS[-1] for end in ENDS]
            ((text, told),) = self._told(phase)
            yield from cut(corpora.read(text.sources, told), ends)
            return
        for split, (text, told) in zip(SPLITS, self._told(phase), strict=True):
            with _blamed(text.field):
                for document in corpora.read(text.sources, told):
                    yield Passage(split, document)

    @functools.cached_property
    def _characters(self) -> int:
        ((text, told),) = self._told("counting the characters")
        return sum(map(len, corpora.read(text.sources, told)))

    def _told(self, phase: str) -> Iterator[tuple[FieldText, Callable[[int], None]]]:
        """Yield each text, with what is to be told how much of it was read."""
        size, before = self.size, 0
        for text in self.texts:
            yield text, functools.partial(lambda before, taken: self.progress(phase, before + taken, size), before)
            before += text.size


def open_texts(
    names: Sequence[list[str]],
    text_feature: str | None,
    tfds_dir: str | None,
    say: Callable[[str], None],
    progress: Progress,
) -> SplitTexts:
    """Return the texts of these names, every one of them known to exist; as `corpus.sources`."""
    is_set = [any(name.startswith(TFDS) for name in of_split) for of_split in names]
    texts = []
    for index, field in enumerate(FIELDS):
        if index == 0 or names[index]:
            # Where none of the three has features, the first says so.
            feature = text_feature if is_set[index] or (index == 0 and not any(is_set)) else None
            with _blamed(field):
                texts.append(FieldText(field, corpora.sources(names[index], feature, tfds_dir, say)))
    return SplitTexts(texts, progress)


@contextlib.contextmanager
def _blamed(field: str) -> Iterator[None]:
    """Let what is said of `corpus` be said of another field, whose text was read as a corpus."""
    try:
        yield
    except CorpusError as error:
        raise CorpusError(re.sub(r"^corpus\b", field, str(error))) from None


def cut(texts: Iterable[str], ends: Sequence[int]) -> Iterator[Passage]:
    """Yield the texts, cut at these numbers of characters, or before the next white space of the text that is cut.

    ends: where train, validation and test end; the last is the number of all characters.
    """
    before = split = 0
    for text in texts:
        start = 0
        while split < len(SPLITS) - 1 and ends[split] < before + len(text):
            at = max(ends[split] - before, start)
            if at > start:
                space = re.compile(r"\s").search(text, at)
                at = space.start() if space else len(text)
            if at > start:
                yield Passage(SPLITS[split], text[start:at], start == 0)
            start, split = at, split + 1
        if start < len(text):
            yield Passage(SPLITS[split], text[start:], start == 0)
        before += len(text)
