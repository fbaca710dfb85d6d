"""A corpus as tokenised sentences, prepared once and stored on disk."""

import array
import dataclasses
import functools
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers

from tiejax.text import corpus as corpora
from tiejax.text import splits, stored
from tiejax.text import tokenizer as tokenization
from tiejax.text.errors import CorpusError
from tiejax.text.sequences import SPLITS, Sequences, dtype_for
from tiejax.text.splits import Texts
from tiejax.text.stored import Prepared, Recipe
from tiejax.text.tokenizer import Vocabulary

# Ends of the training, validation and test splits, in tenths of the sentences.
ENDS = (7, 8, 10)
# Increment whenever a change makes the same text give different sentences.
FORMAT = 3
TOKENISED_AT_ONCE = 4096

Kind = Literal["WordPiece", "unigram"]
TRAINERS = {"WordPiece": tokenization.train, "unigram": tokenization.train_unigram}
NAMES = {"WordPiece": "", "unigram": "-unigram"}  # in file names


@dataclasses.dataclass(frozen=True)
class Sentences(Prepared):
    """Prepared sentences on disk. facts: with counts of characters, sentences and tokens."""

    KIND = "sentences"

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokenizer."""
        return tokenization.vocabulary(self.tokenizer)

    def split(self, name: str) -> Sequences:
        """Return the sentences of "train", "validation" or "test" in the order of the corpus, including [CLS] and [SEP]."""
        return self.sequences(name)


def prepare(
    corpus: Sequence[str],
    max_length: int,
    min_length: int,
    rows_are_sentences: bool = False,
    kind: Kind = "WordPiece",
    **asked: Any,
) -> Sentences:
    """Tokenise the sentences of a corpus.

    The first 70 % of the sentences are for training, the next 10 % for validation, the last 20 % for testing. The ends of the
    splits are rounded down; with `rows_are_sentences` they are rounded to the nearest, as TFDS slices data sets by percent.

    Args:
        corpus: as in `corpus.sources`.
        max_length: largest number of tokens of a sentence, including [CLS] and [SEP]; longer sentences are cut.
        min_length: smallest number of tokens; shorter sentences are dropped, as are those without any token of text.
        rows_are_sentences: treat every example of a data set, or line of a file, as one sentence; with `min_length` 2 none
            is dropped.
        kind: kind of tokenizer to train.
        **asked: as in `stored.prepare`, as are the errors.
    """
    if max_length < 3:
        raise CorpusError(f"max_length {max_length}: expected at least 3, for [CLS], a token and [SEP]")
    if min_length > max_length:
        raise CorpusError(f"min_length {min_length}: expected at most max_length, {max_length}")
    if len(corpus) == 1 and splits.split_files(corpus[0]):
        raise CorpusError(
            f"corpus {corpus[0]}: has separate files for training and test, but sentences of one text are split 70/10/20 here; "
            "name one of the files"
        )
    if len(corpus) == 1:
        splits.check_whole(corpus[0], "name the texts to be split 70/10/20")
    recipe = functools.partial(_recipe, _Limits(max_length, min_length, rows_are_sentences), kind)
    return stored.prepare(Sentences, {"corpus": list(corpus)}, recipe, **asked)


def _recipe(limits: "_Limits", kind: Kind, texts: Texts, hashes: list[str], vocab_size: int) -> Recipe:
    (text,) = hashes
    return Recipe(
        settings={
            "format": FORMAT,
            # The splits depend on the version of the sentence splitter, unless rows are sentences.
            **({"rows_are_sentences": True} if limits.rows else {"nupunkt": importlib.metadata.version("nupunkt")}),
            "text_sha256": text,
            "max_length": limits.most,
            "min_length": limits.least,
        },
        vocabulary=f"{text[:16]}-{vocab_size}{NAMES[kind]}-{tokenization.FORMAT}",
        trained=f"{kind}, at most {vocab_size} tokens, trained on this text",
        train=functools.partial(_trained, texts, kind, vocab_size),
        check=tokenization.vocabulary,
        tokenise=functools.partial(_tokenised, texts, limits),
    )


def _trained(texts: Texts, kind: Kind, vocab_size: int) -> tokenizers.Tokenizer:
    """Return a tokenizer trained on the text; WordPiece reads it twice."""
    phases = iter(("finding the letters", "training the tokenizer")[kind != "WordPiece" :])
    return TRAINERS[kind](lambda: corpora.read(*texts.whole(next(phases))), vocab_size)


class _Limits(NamedTuple):
    """Largest and smallest number of tokens of a sentence, including [CLS] and [SEP]; rows: whether each row is a sentence."""

    most: int
    least: int
    rows: bool

    @property
    def fewest(self) -> int:
        """The effective minimum of tokens: a row may be empty (only [CLS] and [SEP]), a sentence may not."""
        return self.least if self.rows else max(self.least, 3)


@dataclasses.dataclass
class _Collected:
    """Concatenated sentences within the limits, with counts.

    lengths: number of tokens of each sentence, including [CLS] and [SEP]. letters: number of characters of each sentence.
    """

    vocabulary: Vocabulary
    limits: _Limits

    def __post_init__(self) -> None:
        self.ids = array.array(dtype_for(self.vocabulary.size).char)
        self.lengths, self.letters = array.array("i"), array.array("q")
        self.dropped = self.cut = 0

    def add(self, sentence: str, tokens: list[int]) -> None:
        """Append a sentence, cut if it is too long, or drop it if it is too short. tokens: its ids, without [CLS] and [SEP]."""
        self.cut += len(tokens) > self.limits.most - 2
        tokens = [self.vocabulary.cls, *tokens[: self.limits.most - 2], self.vocabulary.sep]
        if len(tokens) < self.limits.fewest:
            self.dropped += 1
            return
        self.ids.extend(tokens)
        self.lengths.append(len(tokens))
        self.letters.append(len(sentence))


def _tokenised(texts: Texts, limits: _Limits, tokenizer: tokenizers.Tokenizer) -> tuple[dict[str, Sequences], dict[str, Any]]:
    """Tokenise the text; return the splits and the counts."""
    vocabulary = tokenization.vocabulary(tokenizer)
    collected = _Collected(vocabulary, limits)
    documents = characters = 0

    def sequences() -> Iterator[str]:
        nonlocal documents, characters
        for document, parts in corpora.read_sequences(*texts.whole("tokenising"), limits.rows):
            documents += 1
            characters += len(document)
            yield from parts

    for batch in tokenization.in_batches(sequences(), TOKENISED_AT_ONCE):
        for sentence, encoding in zip(batch, tokenization.encoded(tokenizer, batch), strict=True):
            collected.add(sentence, encoding.ids)
    splits, counts = _split(collected)
    facts = {"documents": documents, "characters": characters, "dropped": collected.dropped, "cut": collected.cut}
    return splits, {**facts, "splits": counts, "vocabulary": vocabulary.size}


def split_ends(number: int, nearest: bool) -> list[int]:
    """Return the end of each split of `number` sentences, rounded down, or to the nearest (halves to even)."""
    return [round(number * end / ENDS[-1]) if nearest else number * end // ENDS[-1] for end in ENDS]


def _split(collected: _Collected) -> tuple[dict[str, Sequences], dict[str, dict[str, int]]]:
    """Return the sentences and the counts of each split; raises CorpusError if a split would be empty."""
    number, limits = len(collected.lengths), collected.limits
    if number == 0:
        raise CorpusError(
            f"corpus: no sentence is long enough: none of {collected.dropped} has {limits.fewest} tokens or more; "
            "use more text or a smaller min_length"
        )
    ends = split_ends(number, limits.rows)
    starts = [0, *ends[:-1]]
    if any(start == end for start, end in zip(starts, ends, strict=True)):
        raise CorpusError(
            f"corpus: {number} sentences of {limits.fewest} tokens or more are too few to split 70/10/20; use more text"
        )
    ids = np.frombuffer(collected.ids, collected.ids.typecode)
    offsets = np.concatenate([[0], np.cumsum(collected.lengths, dtype=np.int64)])
    splits, counts = {}, {}
    for name, start, end in zip(SPLITS, starts, ends, strict=True):
        splits[name] = Sequences(ids[offsets[start] : offsets[end]], offsets[start : end + 1] - offsets[start])
        counts[name] = {
            "sentences": end - start,
            "tokens": len(splits[name].ids),
            "characters": int(np.sum(collected.letters[start:end], dtype=np.int64)),
        }
    return splits, counts
