"""A corpus as three streams of tokens, for causal language models: tokenised once, stored, and opened again in a moment.

The texts of a stream follow one another with the end-of-text token between them, every character as it is in the corpus.
"""

import array
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Integer

from tiejax.text import splits, stored
from tiejax.text import tokenizer as tokenization
from tiejax.text.array_records import SPLITS, Progress, Sequences, dtype_for, read_split
from tiejax.text.errors import CorpusError
from tiejax.text.splits import FIELDS, Passage, SplitTexts
from tiejax.text.stored import TOKENIZER, nothing

# To be raised whenever the same text would give other streams than before.
FORMAT = 2
RECORD = 4096


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
        return read_split(self.folder, name, dtype_for(self.vocabulary)).ids


def prepare(
    corpus: Sequence[str],
    validation: Sequence[str],
    test: Sequence[str],
    tokenizer: str | None,
    vocab_size: int,
    folder: Path,
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    trained: str | None = None,
    say: Callable[[str], None] = nothing,
    progress: Progress = nothing,
) -> Streams:
    """Return the streams of a corpus, prepared in `folder` or found there.

    corpus, validation, test, text_feature, tfds_dir: as in `corpus.documents`. Without validation and test, a single folder
    that holds one file each called train, valid (or validation, dev) and test is those three; the characters of any other
    corpus are cut 80/10/10, in order, between two words. tokenizer: as in `tokenizer.load`; None for a byte-level BPE of
    `vocab_size` tokens, trained once on each training stream, and on nothing else. trained: the file of one that was trained on
    this text before. say: is told in one line what the user
    should know. progress: is told (phase, done, total) now and then. Raises CorpusError; OSError where the disk is full.
    """
    names = splits.named(corpus, validation, test)

    def recipe() -> stored.Recipe:
        texts = splits.open_texts(names, text_feature, tfds_dir, say, progress)
        hashes = texts.fingerprints()
        ends = splits.ENDS if texts.to_be_cut else None
        of_training = stored.digest({"text_sha256": hashes[0], "ends": ends})
        return stored.Recipe(
            settings={"format": FORMAT, "text_sha256": hashes, "ends": ends},
            vocabulary=f"bytes-{of_training[:16]}-{vocab_size}-{tokenization.FORMAT}",
            train=lambda: tokenization.train_byte_level(texts.of_training, vocab_size),
            check=tokenization.end_of_text,
            tokenise=functools.partial(_tokenised, texts, hashes),
        )

    prepared = stored.prepare("streams", folder, tokenizer or trained, recipe, say, progress)
    by_training = f"byte-level BPE, at most {vocab_size} tokens, trained on the training stream"
    asked = {**dict(zip(FIELDS, names, strict=True)), "tokenizer": tokenizer or by_training}
    return Streams(
        prepared.folder,
        prepared.fingerprint,
        prepared.folder / TOKENIZER,
        tokenization.number_of_ids(prepared.tokenizer),
        tokenization.end_of_text(prepared.tokenizer),
        {**asked, **prepared.facts},
    )


@dataclasses.dataclass
class _Stream:
    """A stream on its way: its ids so far, and what is counted of it."""

    ids: array.array
    documents: int = 0
    words: int = 0
    characters: int = 0
    has_words: bool = False

    def add(self, ids: Sequence[int], text: str, begins: bool, end: int) -> None:
        """Append a part of a document and its ids; begins: whether it is the first part, which `end` stands before."""
        if begins and self.documents:
            self.ids.append(end)
        self.ids.extend(ids)
        words = len(text.split())
        self.has_words |= words > 0
        self.documents += begins
        self.words += words + text.count("\n")
        self.characters += len(text)

    @property
    def counts(self) -> dict[str, int]:
        return {
            "documents": self.documents,
            "tokens": len(self.ids),
            "words": self.words,
            "characters": self.characters,
        }


def _tokenised(
    texts: SplitTexts, fingerprints: Sequence[str], tokenizer: tokenizers.Tokenizer
) -> tuple[dict[str, Sequences], dict[str, Any]]:
    """Return the streams as records, and what is counted."""
    dtype, end = dtype_for(tokenization.number_of_ids(tokenizer)), tokenization.end_of_text(tokenizer)
    streams = {name: _Stream(array.array(dtype.char)) for name in SPLITS}
    documents = 0
    for batch in tokenization.in_batches(_parts(texts, tokenizer)):
        encoded = tokenizer.encode_batch_fast([part for _, _, part in batch], add_special_tokens=False)
        for (passage, begins, part), encoding in zip(batch, encoded, strict=True):
            streams[passage.split].add(encoding.ids, part, begins, end)
            documents += begins and passage.begins
    characters = sum(stream.characters for stream in streams.values())
    if empty := [name for name, stream in streams.items() if not (stream.has_words and stream.ids)]:
        raise CorpusError(f"corpus: {characters} characters are too few: the {empty[0]} stream would have no word")
    texts.check(fingerprints)
    counts = {name: stream.counts for name, stream in streams.items()}
    facts = {"documents": documents, "characters": characters, "splits": counts}
    records = {name: _records(np.frombuffer(stream.ids, dtype)) for name, stream in streams.items()}
    return records, {**facts, "vocabulary": tokenization.number_of_ids(tokenizer)}


def _parts(texts: SplitTexts, tokenizer: tokenizers.Tokenizer) -> Iterator[tuple[Passage, bool, str]]:
    """Yield every passage in parts that can be encoded one by one, each with whether it is the first."""
    for passage in texts.passages("tokenising"):
        for index, part in enumerate(tokenization.in_parts(tokenizer, passage.text)):
            yield passage, index == 0, part


def _records(ids: np.ndarray) -> Sequences:
    return Sequences(ids, np.append(np.arange(0, len(ids), RECORD), len(ids)).astype(np.int64))
