"""A corpus as sentences of tokens: tokenised once, stored, and opened again in a moment."""

import array
import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers

from tiejax.text import corpus as corpora
from tiejax.text import stored
from tiejax.text import tokenizer as tokenization
from tiejax.text.array_records import SPLITS, Progress, Sequences, dtype_for, read_split
from tiejax.text.errors import CorpusError
from tiejax.text.sources import Source
from tiejax.text.stored import TOKENIZER, nothing, told
from tiejax.text.tokenizer import Vocabulary

# Of every ten sentences, where each split ends.
ENDS = (7, 8, 10)
# To be raised whenever the same text would give other sentences than before.
FORMAT = 3
TOKENISED_AT_ONCE = 4096

ROWS = "rows_are_sentences"  # in the manifest
Kind = Literal["WordPiece", "unigram"]
TRAINERS = {"WordPiece": tokenization.train, "unigram": tokenization.train_unigram}
NAMES = {"WordPiece": "", "unigram": "-unigram"}  # in file names


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared set on disk, checked against its manifest when it was opened.

    fingerprint: SHA-256 (hex) of text, tokenizer and settings. facts: counts, in characters, sentences and tokens, and
    where they come from, as JSON can hold them.
    """

    folder: Path
    fingerprint: str
    tokenizer_file: Path
    vocabulary: Vocabulary
    facts: dict[str, Any]

    def split(self, name: str) -> Sequences:
        """Return the sentences of "train", "validation" or "test", in the order of the corpus, [CLS] and [SEP] included."""
        return read_split(self.folder, name, dtype_for(self.vocabulary.size))


def prepare(
    corpus: Sequence[str],
    tokenizer: str | None,
    vocab_size: int,
    max_length: int,
    min_length: int,
    folder: Path,
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    rows_are_sentences: bool = False,
    kind: Kind = "WordPiece",
    trained: str | None = None,
    say: Callable[[str], None] = nothing,
    progress: Progress = nothing,
) -> Prepared:
    """Return the corpus as sentences of tokens, prepared in `folder` or found there.

    The first 70 % of the sentences are for training, the next 10 % for validation, the last 20 % for tests; rounded down, or
    where rows are sentences to the nearest, as data sets are sliced by percent.

    corpus, text_feature, tfds_dir: as in `corpus.documents`. tokenizer: as in `tokenizer.load`; None for a vocabulary of
    this `kind` and of `vocab_size` tokens, trained once for each text. max_length, min_length: tokens of a sentence with [CLS]
    and [SEP]; longer ones are cut, shorter ones dropped, and always those of no other token. rows_are_sentences: every example
    of a data set, or line of a file, is one sentence, not to be split again; with a min_length of 2 none is dropped. say: is
    told in one line what the user should know. trained: the file of a vocabulary that was trained on this text before.
    progress: is told (phase, done, total) now and then. Raises CorpusError; OSError where the disk is full.
    """
    limits = _Limits(max_length, min_length, rows_are_sentences)
    limits.check()

    def recipe() -> stored.Recipe:
        sources = corpora.sources(corpus, text_feature, tfds_dir, say)
        text = corpora.fingerprint(sources, told(progress, "reading", sources))
        return stored.Recipe(
            settings={
                "format": FORMAT,
                # What makes sentences of documents.
                **({ROWS: True} if rows_are_sentences else {"nupunkt": importlib.metadata.version("nupunkt")}),
                "text_sha256": text,
                "max_length": max_length,
                "min_length": min_length,
            },
            vocabulary=f"{text[:16]}-{vocab_size}{NAMES[kind]}-{tokenization.FORMAT}",
            train=functools.partial(_trained, sources, kind, vocab_size, progress),
            check=tokenization.vocabulary,
            tokenise=functools.partial(_tokenised, sources, text, limits, progress),
        )

    prepared = stored.prepare("sentences", folder, tokenizer or trained, recipe, say, progress)
    by_training = f"{kind}, at most {vocab_size} tokens, trained on this text"
    asked = {"corpus": list(corpus), "tokenizer": tokenizer or by_training}
    return Prepared(
        prepared.folder,
        prepared.fingerprint,
        prepared.folder / TOKENIZER,
        tokenization.vocabulary(prepared.tokenizer),
        {**asked, **prepared.facts},
    )


def _trained(sources: Sequence[Source], kind: Kind, vocab_size: int, progress: Progress) -> tokenizers.Tokenizer:
    """Return a vocabulary trained on the sources, which may be read more than once."""
    phases = iter(("finding the letters", "training the tokenizer")[kind != "WordPiece" :])
    return TRAINERS[kind](lambda: corpora.read(sources, told(progress, next(phases), sources)), vocab_size)


class _Limits(NamedTuple):
    """What a sentence is: tokens at most and at least, [CLS] and [SEP] included, and whether it is a row."""

    most: int
    least: int
    rows: bool

    def check(self) -> None:
        """Raise CorpusError if no sentence can be so long."""
        if self.most < 3:
            raise CorpusError(f"max_length {self.most}: must be 3 at least, for [CLS], a token and [SEP]")
        if self.least > self.most:
            raise CorpusError(f"min_length {self.least}: is above max_length {self.most}")

    @property
    def fewest(self) -> int:
        """The tokens of the shortest sentence that is kept; of rows, one of [CLS] and [SEP] alone may be asked for."""
        return self.least if self.rows else max(self.least, 3)


@dataclasses.dataclass
class _Kept:
    """The sentences that are long enough, cut where they are too long, one after the other; and counts.

    lengths: tokens of each, [CLS] and [SEP] included. letters: characters of each.
    """

    vocabulary: Vocabulary
    limits: _Limits

    def __post_init__(self) -> None:
        self.ids = array.array(dtype_for(self.vocabulary.size).char)
        self.lengths, self.letters = array.array("i"), array.array("q")
        self.dropped = self.cut = 0

    def add(self, sentence: str, tokens: list[int]) -> None:
        """Keep a sentence unless it is too short; tokens: all of its own."""
        self.cut += len(tokens) > self.limits.most - 2
        tokens = [self.vocabulary.cls, *tokens[: self.limits.most - 2], self.vocabulary.sep]
        if len(tokens) < self.limits.fewest:
            self.dropped += 1
            return
        self.ids.extend(tokens)
        self.lengths.append(len(tokens))
        self.letters.append(len(sentence))


def _tokenised(
    sources: Sequence[Source],
    text: str,
    limits: _Limits,
    progress: Progress,
    tokenizer: tokenizers.Tokenizer,
) -> tuple[dict[str, Sequences], dict[str, Any]]:
    """Return the splits and what is counted; text: the fingerprint of the sources."""
    vocabulary = tokenization.vocabulary(tokenizer)
    kept = _Kept(vocabulary, limits)
    documents = characters = 0

    def sequences() -> Iterator[str]:
        nonlocal documents, characters
        for document, parts in corpora.read_sequences(sources, limits.rows, told(progress, "tokenising", sources)):
            documents += 1
            characters += len(document)
            yield from parts

    for batch in tokenization.in_batches(sequences(), TOKENISED_AT_ONCE):
        encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        for sentence, encoding in zip(batch, encoded, strict=True):
            kept.add(sentence, encoding.ids)
    splits, counts = _split(kept)
    if corpora.fingerprint(sources) != text:
        raise CorpusError("corpus: changed while it was read; start again")
    facts = {"documents": documents, "characters": characters, "dropped": kept.dropped, "cut": kept.cut}
    return splits, {**facts, "splits": counts, "vocabulary": vocabulary.size}


def ends_of(number: int, nearest: bool) -> list[int]:
    """Return where each split of so many sentences ends: rounded down, or to the nearest, halves to the even number."""
    return [round(number * end / ENDS[-1]) if nearest else number * end // ENDS[-1] for end in ENDS]


def _split(kept: _Kept) -> tuple[dict[str, Sequences], dict[str, dict[str, int]]]:
    """Return the sentences of each split, and their counts; raises CorpusError if there are too few."""
    number = len(kept.lengths)
    if number == 0:
        raise CorpusError(f"corpus: no sentence long enough: none of {kept.dropped} has {kept.limits.least} tokens or more")
    ends = ends_of(number, kept.limits.rows)
    starts = [0, *ends[:-1]]
    if any(start == end for start, end in zip(starts, ends, strict=True)):
        raise CorpusError(f"corpus: {number} sentences of {kept.limits.least} tokens or more are too few to be split 70/10/20")
    ids = np.frombuffer(kept.ids, kept.ids.typecode)
    offsets = np.concatenate([[0], np.cumsum(kept.lengths, dtype=np.int64)])
    splits, counts = {}, {}
    for name, start, end in zip(SPLITS, starts, ends, strict=True):
        splits[name] = Sequences(ids[offsets[start] : offsets[end]], offsets[start : end + 1] - offsets[start])
        counts[name] = {
            "sentences": end - start,
            "tokens": len(splits[name].ids),
            "characters": int(np.sum(kept.letters[start:end], dtype=np.int64)),
        }
    return splits, counts
