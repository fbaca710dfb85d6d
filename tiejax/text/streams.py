"""A corpus as three tokenised streams for causal language models, prepared once and stored on disk.

A stream is the concatenation of its documents, separated by the end-of-text token; every character is preserved, unless a given
tokenizer drops it.
"""

import array
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Integer

from tiejax.text import splits, stored
from tiejax.text import tokenizer as tokenization
from tiejax.text.errors import CorpusError
from tiejax.text.sequences import SPLITS, Sequences, dtype_for
from tiejax.text.splits import Passage, Texts
from tiejax.text.stored import Prepared, Recipe

# Increment whenever a change makes the same text give different streams.
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Streams(Prepared):
    """Three streams of tokens on disk.

    facts: with counts of documents, tokens, words and characters of every stream. Words are counted as in WikiText, where the
    end of a line is a word. A document that is cut between two streams counts in both.
    """

    KIND = "streams"

    @functools.cached_property
    def vocabulary(self) -> int:
        """The number of ids."""
        return tokenization.number_of_ids(self.tokenizer)

    @property
    def begin(self) -> int:
        """The id of the end-of-text token, which also begins each block."""
        return tokenization.end_of_text(self.tokenizer)

    def split(self, name: str) -> Integer[np.ndarray, " tokens"]:
        """Return the stream "train", "validation" or "test"."""
        return self.sequences(name).ids

    def bytes_of(self, ids: Integer[np.ndarray, "..."]) -> int:
        """Return the number of bytes, in UTF-8, of the text of tokens; special tokens and ends of texts have none.

        Exact for a byte-level tokenizer, each of whose tokens is a number of bytes; for others the tokens of every row are
        decoded together.
        """
        if self.tokenizer.decoder is not None and "ByteLevel" in repr(self.tokenizer.decoder):
            # A character of a token of the vocabulary is a byte; an added token is its own text.
            added = self.tokenizer.get_added_tokens_decoder()
            own = {one: 0 if token.special else len(token.content.encode()) for one, token in added.items()} | {self.begin: 0}
            lengths = [own.get(one, len(self.tokenizer.id_to_token(one) or "")) for one in range(self.vocabulary)]
            return int(np.array(lengths)[ids].sum())
        rows = np.atleast_2d(ids).reshape(-1, ids.shape[-1])
        return sum(len(text.encode()) for text in self.tokenizer.decode_batch(rows.tolist()))

    def token_texts(self) -> list[str]:
        """Return the text of every token, with its spaces."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in range(self.vocabulary)]


def prepare(corpus: Sequence[str], validation: Sequence[str], test: Sequence[str], **asked: Any) -> Streams:
    """Tokenise the streams of a corpus; a trained tokenizer is a byte-level BPE, trained on the training stream alone.

    Args:
        corpus: the training text, as in `corpus.sources`. Without `validation` and `test`, a single folder with one file each
            called train, valid (or validation, val, dev) and test, as in `train.txt` or `wiki.train.tokens`, gives the
            three streams; the characters of any other corpus are cut 80/10/10, in order, between two words.
        validation: the validation text, likewise.
        test: the test text, likewise.
        **asked: as in `stored.prepare`, as are the errors.
    """
    return stored.prepare(Streams, splits.split_names(corpus, validation, test), _recipe, **asked)


def _recipe(texts: Texts, hashes: list[str], vocab_size: int) -> Recipe:
    ends = splits.ENDS if texts.needs_cutting else None
    training_digest = stored.digest({"text_sha256": hashes[0], "ends": ends})
    return Recipe(
        settings={"format": FORMAT, "text_sha256": hashes, "ends": ends},
        vocabulary=f"bytes-{training_digest[:16]}-{vocab_size}-{tokenization.FORMAT}",
        trained=f"byte-level BPE, at most {vocab_size} tokens, trained on the training stream",
        train=lambda: tokenization.train_byte_level(texts.training_texts, vocab_size),
        check=tokenization.end_of_text,
        tokenise=functools.partial(_tokenised, texts),
    )


@dataclasses.dataclass
class _Stream:
    """A stream under construction: its ids and counts so far."""

    ids: array.array
    documents: int = 0
    words: int = 0
    characters: int = 0
    has_words: bool = False

    def add(self, ids: Sequence[int], text: str, begins: bool, end: int) -> None:
        """Append a part of a document and its ids. begins: whether it is the first part, separated by the token `end`."""
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
        return {"documents": self.documents, "tokens": len(self.ids), "words": self.words, "characters": self.characters}


def _tokenised(texts: Texts, tokenizer: tokenizers.Tokenizer) -> tuple[dict[str, Sequences], dict[str, Any]]:
    """Tokenise the texts; return each stream as one sequence, and the counts."""
    dtype, end = dtype_for(tokenization.number_of_ids(tokenizer)), tokenization.end_of_text(tokenizer)
    streams = {name: _Stream(array.array(dtype.char)) for name in SPLITS}
    documents = 0
    for batch in tokenization.in_batches(_parts(texts, tokenizer)):
        encodings = tokenization.encoded(tokenizer, [part for _, _, part in batch])
        for (passage, begins, part), encoding in zip(batch, encodings, strict=True):
            streams[passage.split].add(encoding.ids, part, begins, end)
            documents += begins and passage.begins
    characters = sum(stream.characters for stream in streams.values())
    if empty := [name for name, stream in streams.items() if not (stream.has_words and stream.ids)]:
        raise CorpusError(
            f"corpus: {characters:,} characters have too few words: the {empty[0]} stream would have none; use more text, with "
            "white space between words"
        )
    counts = {name: stream.counts for name, stream in streams.items()}
    facts = {"documents": documents, "characters": characters, "splits": counts}
    sequences = {
        name: Sequences(np.frombuffer(stream.ids, dtype), np.array([0, len(stream.ids)])) for name, stream in streams.items()
    }
    return sequences, {**facts, "vocabulary": tokenization.number_of_ids(tokenizer)}


def _parts(texts: Texts, tokenizer: tokenizers.Tokenizer) -> Iterator[tuple[Passage, bool, str]]:
    """Yield every passage in parts that can be encoded separately; the flag marks the first part of a passage."""
    for passage in texts.passages("tokenising"):
        for index, part in enumerate(tokenization.in_parts(tokenizer, passage.text)):
            yield passage, index == 0, part
