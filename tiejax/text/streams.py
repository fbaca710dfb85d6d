"""A corpus as three streams of tokens, for causal language models: tokenised once, stored, and opened again in a moment.

The texts of a stream follow one another with the end-of-text token between them, every character as it is in the corpus.
"""

import array
import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Integer

from tiejax.text import corpus as corpora
from tiejax.text import stored
from tiejax.text import tokenizer as tokenization
from tiejax.text.corpus import CorpusError
from tiejax.text.stored import SPLITS, TOKENIZER, Progress

# Of every ten characters, where each stream of a corpus that is not split yet ends.
ENDS = (8, 9, 10)
# To be raised whenever the same text would give other streams than before.
FORMAT = 2
RECORD = 4096
# The names of the files of a corpus that is split already, as WikiText has them.
FILES = {"train": ("train",), "validation": ("valid", "validation", "dev"), "test": ("test",)}


@dataclasses.dataclass(frozen=True)
class Streams:
    """Three streams of tokens on disk, checked against their manifest when they were opened.

    fingerprint: SHA-256 (hex) of texts, tokenizer and settings. vocabulary: the number of ids. begin: the id of the
    end-of-text token, with which a block begins, too. facts: where the text comes from, and the tokens, words and characters
    of every stream, as JSON can hold them; words are counted as WikiText's are, the end of a line being one. A document that is
    cut is one of both streams.
    """

    folder: Path
    fingerprint: str
    tokenizer_file: Path
    vocabulary: int
    begin: int
    facts: dict[str, Any]

    def split(self, name: str) -> Integer[np.ndarray, "tokens"]:
        """Return the stream "train", "validation" or "test"."""
        return stored.read_split(self.folder, name, stored.dtype_for(self.vocabulary)).ids


def _nothing(*_: object) -> None:
    pass


def prepare(
    corpus: Sequence[str],
    validation: Sequence[str],
    test: Sequence[str],
    tokenizer: str | None,
    vocab_size: int,
    folder: Path,
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    say: Callable[[str], None] = _nothing,
    progress: Progress = _nothing,
) -> Streams:
    """Return the streams of a corpus, prepared in `folder` or found there.

    corpus, validation, test, text_feature, tfds_dir: as in `corpus.documents`. Without validation and test, a single folder
    that holds one file each called train, valid (or validation, dev) and test is those three; the characters of any other
    corpus are cut 80/10/10, in order, between two words. tokenizer: as in `tokenizer.load`; None for a byte-level BPE of
    `vocab_size` tokens, trained once on each training stream, and on nothing else. say: is told in one line what the user
    should know. progress: is told (phase, done, total) now and then. Raises CorpusError, also where the disk is full.
    """
    names = _named(corpus, validation, test)
    with stored.workplace(folder, say):
        texts = _found(names, text_feature, tfds_dir, say, progress)
        hashes = texts.fingerprints()
        ends = ENDS if texts.to_be_cut else None
        if tokenizer is None:
            of_training = stored.digest({"text_sha256": hashes[0], "ends": ends})
            model = stored.once_trained(
                folder,
                f"bytes-{of_training[:16]}-{vocab_size}",
                lambda: tokenization.train_byte_level(texts.of_training(), vocab_size).to_str().encode(),
            )
        else:
            loaded = tokenization.load(tokenizer)
            tokenization.end_of_text(loaded)
            model = loaded.to_str().encode()
        settings = {
            "format": FORMAT,
            "text_sha256": hashes,
            "ends": ends,
            "tokenizer_sha256": hashlib.sha256(model).hexdigest(),
        }
        fingerprint = stored.digest(settings)
        target = folder / f"streams-{fingerprint[:16]}"
        if not target.exists():
            say(f"preparing the text in {target}")
            _build(target, texts, model, fingerprint, settings, progress)
        facts = stored.opened(target, fingerprint)
        loaded = tokenization.load(str(target / TOKENIZER))
        trained = f"byte-level BPE, at most {vocab_size} tokens, trained on the training stream"
        asked = {**dict(zip(("corpus", "validation", "test"), names, strict=True)), "tokenizer": tokenizer or trained}
        vocabulary, begin = tokenization.number_of_ids(loaded), tokenization.end_of_text(loaded)
        return Streams(target, fingerprint, target / TOKENIZER, vocabulary, begin, {**asked, **facts})


# The texts.


def _named(corpus: Sequence[str], validation: Sequence[str], test: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The names of training, validation and test texts; of the last two none where the first are to be cut."""
    for missing, given, option, other in ((validation, test, "validation", "test"), (test, validation, "test", "validation")):
        if given and not missing:
            raise CorpusError(f"--{option}: needed, since --{other} is given; without both of them --corpus is cut 80/10/10")
    if len(corpus) == 1 and not validation and (files := _split_already(corpus[0])):
        return [files["train"]], [files["validation"]], [files["test"]]
    return list(corpus), list(validation), list(test)


def _split_already(name: str) -> dict[str, str] | None:
    """The files of a folder that holds one for each stream, or None if it does not."""
    try:
        files = sorted(path for path in Path(name).iterdir() if path.is_file() and corpora.is_text(path.name))
    except OSError:
        return None  # no folder, or whoever reads it says what is wrong
    found = {
        split: [path for path in files if path.name.lower().removesuffix(".gz").rpartition(".")[0] in stems]
        for split, stems in FILES.items()
    }
    if not all(found.values()):
        return None
    for split, paths in found.items():
        if len(paths) > 1:
            several = " and ".join(path.name for path in paths)
            raise CorpusError(f"--corpus {name}: holds {several}, of which one can be the {split} stream; name the files")
    return {split: str(path) for split, (path,) in found.items()}


class Passage(NamedTuple):
    """A text of a stream, or the part of one. begins: whether it is the first part."""

    split: str
    text: str
    begins: bool = True


class _Text(NamedTuple):
    """Sources to be read one after the other; what is wrong with them is said of `option`."""

    option: str
    sources: list[corpora.Source]

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)


@dataclasses.dataclass(frozen=True)
class _Texts:
    """The texts of the three streams, or the one that is to be cut."""

    texts: list[_Text]
    progress: Progress

    @property
    def to_be_cut(self) -> bool:
        return len(self.texts) == 1

    @property
    def size(self) -> int:
        return sum(text.size for text in self.texts)

    def fingerprints(self) -> list[str]:
        found = []
        for text, told in self._told("reading"):
            with _blamed(text.option):
                found.append(corpora.fingerprint(text.sources, told))
        return found

    def of_training(self) -> Iterator[str]:
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
            with _blamed(text.option):
                for document in corpora.read(text.sources, told):
                    yield Passage(split, document)

    @functools.cached_property
    def _characters(self) -> int:
        ((text, told),) = self._told("counting the characters")
        return sum(map(len, corpora.read(text.sources, told)))

    def _told(self, phase: str) -> Iterator[tuple[_Text, Callable[[int], None]]]:
        """Each text, with what is to be told how much of it was read."""
        size, before = self.size, 0
        for text in self.texts:
            yield text, functools.partial(lambda before, taken: self.progress(phase, before + taken, size), before)
            before += text.size


def _found(
    names: Sequence[list[str]],
    text_feature: str | None,
    tfds_dir: str | None,
    say: Callable[[str], None],
    progress: Progress,
) -> _Texts:
    is_set = [any(name.startswith(corpora.TFDS) for name in of_split) for of_split in names]
    found = []
    for index, option in enumerate(("--corpus", "--validation", "--test")):
        if index == 0 or names[index]:
            # Where none of the three has features, the first says so.
            feature = text_feature if is_set[index] or (index == 0 and not any(is_set)) else None
            with _blamed(option):
                found.append(_Text(option, corpora.sources(names[index], feature, tfds_dir, say)))
    return _Texts(found, progress)


@contextlib.contextmanager
def _blamed(option: str) -> Iterator[None]:
    """Let what is said of --corpus be said of another option, whose text was read as a corpus."""
    try:
        yield
    except CorpusError as error:
        raise CorpusError(re.sub("^--corpus", option, str(error))) from None


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


# The tokens.


def _build(target: Path, texts: _Texts, model: bytes, fingerprint: str, settings: dict[str, Any], progress: Progress) -> None:
    with stored.built(target) as folder:
        (folder / TOKENIZER).write_bytes(model)
        tokenizer = tokenization.load(str(folder / TOKENIZER))
        tokens, counts = _tokenised(texts.passages("tokenising"), tokenizer)
        again = dataclasses.replace(texts, progress=_nothing).fingerprints()
        for text, before, now in zip(texts.texts, settings["text_sha256"], again, strict=True):
            if now != before:
                raise CorpusError(f"{text.option}: changed while it was read; start again")
        stored.write(folder, "text_streams", {name: _records(ids) for name, ids in tokens.items()}, progress)
        stored.seal(folder, fingerprint, {**settings, **counts, "vocabulary": tokenization.number_of_ids(tokenizer)})


def _tokenised(passages: Iterable[Passage], tokenizer: tokenizers.Tokenizer) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    dtype, end = stored.dtype_for(tokenization.number_of_ids(tokenizer)), tokenization.end_of_text(tokenizer)
    ids = {name: array.array(dtype.char) for name in SPLITS}
    counts = {name: {"documents": 0, "tokens": 0, "words": 0, "characters": 0} for name in SPLITS}
    spelled = dict.fromkeys(SPLITS, False)
    documents = 0
    parts = (
        (passage, index == 0, part)
        for passage in passages
        for index, part in enumerate(tokenization.in_parts(tokenizer, passage.text))
    )
    for batch in tokenization.together(parts):
        encoded = tokenizer.encode_batch_fast([part for _, _, part in batch], add_special_tokens=False)
        for (passage, first, part), encoding in zip(batch, encoded, strict=True):
            count, into = counts[passage.split], ids[passage.split]
            if first and count["documents"]:
                into.append(end)
            into.extend(encoding.ids)
            words = len(part.split())
            spelled[passage.split] |= words > 0
            documents += first and passage.begins
            count["documents"] += first
            count["words"] += words + part.count("\n")
            count["characters"] += len(part)
    characters = sum(count["characters"] for count in counts.values())
    if empty := [name for name in SPLITS if not (spelled[name] and ids[name])]:
        raise CorpusError(f"--corpus: {characters} characters are too few: the {empty[0]} stream would have no word")
    for name in SPLITS:
        counts[name]["tokens"] = len(ids[name])
    facts = {"documents": documents, "characters": characters, "splits": counts}
    return {name: np.frombuffer(found, dtype) for name, found in ids.items()}, facts


def _records(ids: np.ndarray) -> stored.Sequences:
    return stored.Sequences(ids, np.append(np.arange(0, len(ids), RECORD), len(ids)).astype(np.int64))
