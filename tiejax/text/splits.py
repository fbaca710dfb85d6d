"""Texts of the training, validation and test streams: named, found in one folder, or cut from one corpus."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tiejax.text import corpus as corpora
from tiejax.text.errors import CorpusError
from tiejax.text.files import is_text
from tiejax.text.sequences import SPLITS, Progress, ignore
from tiejax.text.sources import TFDS, Source

# Ends of the three streams cut from one corpus, in tenths of its characters.
ENDS = (8, 9, 10)
# The last words of file names that mark a folder as already split: `train.txt`, or `wiki.train.tokens` as in WikiText.
WORDS = {"train": ("train",), "validation": ("valid", "validation", "val", "dev"), "test": ("test",)}


def split_names(corpus: Sequence[str], validation: Sequence[str], test: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the training, validation and test texts by setting; the last two empty if the corpus must be cut.

    Raises CorpusError if only one of validation and test is given.
    """
    for missing, present, field, other in ((validation, test, "validation", "test"), (test, validation, "test", "validation")):
        if present and not missing:
            raise CorpusError(f"{field}: required, since {other} is given; without both of them the corpus is cut 80/10/10")
    if len(corpus) == 1 and not validation and (files := _presplit_files(corpus[0])):
        corpus, validation, test = ([files[split]] for split in SPLITS)
    return {"corpus": list(corpus), "validation": list(validation), "test": list(test)}


def split_files(name: str) -> dict[str, list[Path]] | None:
    """Return the files of a folder for each stream, or None unless it is split: it has files for all, or for two of one name.

    The name is what comes before the word: `wiki.train.tokens` and `wiki.test.tokens` have the name `wiki`.
    """
    try:
        files = sorted(path for path in Path(name).iterdir() if path.is_file() and is_text(path.name))
    except OSError:
        return None  # not a folder, or unreadable; reading it later raises the error
    named = [(path, path.name.lower().removesuffix(".gz").split(".")) for path in files]
    by_split = {split: [path for path, parts in named if parts[-2] in words] for split, words in WORDS.items()}
    # Of each split once: two splits of one name have the same one.
    names = [name for words in WORDS.values() for name in {tuple(parts[:-2]) for _, parts in named if parts[-2] in words}]
    return by_split if all(by_split.values()) or len(set(names)) < len(names) else None


def check_whole(name: str, instead: str) -> None:
    """Raise CorpusError for a folder whose files or folders seem to be splits that `split_files` does not find.

    Such as `train-00000.txt` or `test/`: the first or last word of a name is that of a split. instead: what to do.
    """
    try:
        paths = sorted(path for path in Path(name).iterdir() if path.name[0] != "." and (path.is_dir() or is_text(path.name)))
    except OSError:
        return
    found: dict[str, str] = {}
    for path in paths:
        stem = path.name.lower() if path.is_dir() else path.name.lower().removesuffix(".gz").rpartition(".")[0]
        words = re.findall(r"[a-z]+", re.sub(r"-of-\d+$", "", stem)) or [""]
        for split, marks in WORDS.items():
            if {words[0], words[-1]} & {*marks}:
                found.setdefault(split, path.name)
    if "train" in found and len(found) > 1:
        names = " and ".join(found.values())
        raise CorpusError(
            f"corpus {name}: contains {names}, which would be joined and split again; {instead}, or name all files to join them"
        )


def _presplit_files(name: str) -> dict[str, str] | None:
    """Return the file of a folder for each stream, or None for a path that is not split; raises CorpusError if unclear."""
    by_split = split_files(name)
    if by_split is None:
        check_whole(name, "name them with corpus, validation and test")
        return None
    if absent := [split for split, paths in by_split.items() if not paths]:
        present = " and ".join(paths[0].name for paths in by_split.values() if paths)
        raise CorpusError(
            f"corpus {name}: contains {present}, but no {absent[0]} file; name three files with corpus, validation and test"
        )
    for split, paths in by_split.items():
        if len(paths) > 1:
            several = " and ".join(path.name for path in paths)
            raise CorpusError(f"corpus {name}: contains {several}, but only one can be the {split} stream; name the files")
    return {split: str(path) for split, (path,) in by_split.items()}


class Passage(NamedTuple):
    """A document of a stream, or a part of one. begins: whether it is the first part of the document."""

    split: str
    text: str
    begins: bool = True


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of the three splits, or one text of them all.

    texts: the sources of each by its setting, which errors about them name. progress: called with (phase, done, total), in
    bytes, while they are read.
    """

    texts: dict[str, list[Source]]
    progress: Progress

    @property
    def needs_cutting(self) -> bool:
        return len(self.texts) == 1

    @property
    def size(self) -> int:
        return sum(source.size for sources in self.texts.values() for source in sources)

    def fingerprints(self) -> list[str]:
        """Return the fingerprint of every text."""
        hashes = []
        for field, sources, report in self._with_progress("reading"):
            with _errors_about(field):
                hashes.append(corpora.fingerprint(sources, report))
        return hashes

    def check(self, fingerprints: Sequence[str]) -> None:
        """Raise CorpusError if a fingerprint has changed."""
        again = dataclasses.replace(self, progress=ignore).fingerprints()
        for field, before, now in zip(self.texts, fingerprints, again, strict=True):
            if now != before:
                raise CorpusError(f"{field}: changed while it was being read; start again")

    def training_texts(self) -> Iterator[str]:
        """Yield the texts of the training stream."""
        phase = "training the tokenizer"
        for passage in self.passages(phase):
            if passage.split != SPLITS[0]:
                break
            yield passage.text
        self.progress(phase, self.size, self.size)

    def passages(self, phase: str) -> Iterator[Passage]:
        """Yield every document in order as a passage; a document cut between streams gives one passage per stream."""
        if self.needs_cutting:
            ends = [self._characters * end // ENDS[-1] for end in ENDS]
            yield from cut(corpora.read(*self.whole(phase)), ends)
            return
        for split, (field, sources, report) in zip(SPLITS, self._with_progress(phase), strict=True):
            with _errors_about(field):
                for document in corpora.read(sources, report):
                    yield Passage(split, document)

    def whole(self, phase: str) -> tuple[list[Source], Callable[[int], None]]:
        """Return the sources of the only text, and a callback for the number of bytes read from them."""
        ((_, sources, report),) = self._with_progress(phase)
        return sources, report

    @functools.cached_property
    def _characters(self) -> int:
        return sum(map(len, corpora.read(*self.whole("counting the characters"))))

    def _with_progress(self, phase: str) -> Iterator[tuple[str, list[Source], Callable[[int], None]]]:
        """Yield each text with its setting and a callback for the number of bytes read from it."""
        size, before = self.size, 0
        for field, sources in self.texts.items():
            yield field, sources, functools.partial(lambda before, taken: self.progress(phase, before + taken, size), before)
            before += sum(source.size for source in sources)


def open_texts(
    names: Mapping[str, Sequence[str]],
    text_feature: str | None,
    tfds_dir: str | None,
    say: Callable[[str], None],
    progress: Progress,
) -> Texts:
    """Open the texts with these names by setting, `corpus` first; other arguments and errors as in `corpus.sources`."""
    with_sets = [field for field, one in names.items() if any(name.startswith(TFDS) for name in one)]
    texts: dict[str, list[Source]] = {}
    for field, one in names.items():
        if one or field == "corpus":
            # If none of the texts is a data set, the first one raises the error about text_feature.
            feature = text_feature if field in with_sets or not with_sets else None
            with _errors_about(field):
                texts[field] = corpora.sources(one, feature, tfds_dir, say)
    _check_different(texts)
    return Texts(texts, progress)


def _check_different(texts: Mapping[str, Sequence[Source]]) -> None:
    """Raise CorpusError if a text has a file or a data set twice, as `a.txt` and `a.txt.gz`, or one of the training text."""
    keys = {
        field: [
            str(Path(path).resolve()).removesuffix(".gz") if (path := getattr(one, "path", None)) else one.name for one in found
        ]
        for field, found in texts.items()
    }
    for field, found in texts.items():
        seen = dict[str, str]() if field == "corpus" else dict(zip(keys["corpus"], [""] * len(keys["corpus"]), strict=True))
        for key, source in zip(keys[field], found, strict=True):
            if key in seen:
                which = f"the same text as {seen[key]}" if seen[key] else "part of the corpus, for training, as well"
                raise CorpusError(f"{field} {source.name}: is {which}; name every text once")
            seen[key] = source.name


@contextlib.contextmanager
def _errors_about(field: str) -> Iterator[None]:
    """Replace `corpus` by `field` at the beginning of the messages of CorpusErrors raised inside."""
    try:
        yield
    except CorpusError as error:
        raise CorpusError(re.sub(r"^corpus\b", field, str(error))) from None


def cut(texts: Iterable[str], ends: Sequence[int]) -> Iterator[Passage]:
    """Cut the texts into training, validation and test passages, at the next white space or end of a text.

    ends: cumulative number of characters at the end of each split; the last is the number of all characters.
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
