"""A corpus as sentences of tokens: tokenised once, stored, and opened again in a moment."""

import array
import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tiejax.text import corpus as corpora
from tiejax.text import stored
from tiejax.text import tokenizer as tokenization
from tiejax.text.corpus import CorpusError
from tiejax.text.stored import SPLITS, TOKENIZER, Progress
from tiejax.text.tokenizer import Vocabulary

# Of every ten sentences, where each split ends.
ENDS = (7, 8, 10)
# To be raised whenever the same text would give other sentences than before.
FORMAT = 2
TOKENISED_AT_ONCE = 4096

# The sentences of a split, [CLS] and [SEP] included.
Sentences = stored.Sequences


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

    def split(self, name: str) -> Sentences:
        """Return the sentences of "train", "validation" or "test", in the order of the corpus."""
        return stored.read_split(self.folder, name, stored.dtype_for(self.vocabulary.size))


def _nothing(*_: object) -> None:
    pass


def prepare(
    corpus: Sequence[str],
    tokenizer: str | None,
    vocab_size: int,
    max_length: int,
    min_length: int,
    folder: Path,
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    say: Callable[[str], None] = _nothing,
    progress: Progress = _nothing,
) -> Prepared:
    """Return the corpus as sentences of tokens, prepared in `folder` or found there.

    The first 70 % of the sentences are for training, the next 10 % for validation, the last 20 % for tests.

    corpus, text_feature, tfds_dir: as in `corpus.documents`. tokenizer: as in `tokenizer.load`; None for a WordPiece
    vocabulary of `vocab_size` tokens, trained once for each text. max_length, min_length: tokens of a sentence with [CLS]
    and [SEP]; longer ones are cut, shorter ones dropped, and always those of no other token. say: is told in one line
    what the user should know. progress: is told (phase, done, total) now and then. Raises CorpusError, also where the
    disk is full.
    """
    if max_length < 3:
        raise CorpusError(f"--max_length {max_length}: must be 3 at least, for [CLS], a token and [SEP]")
    if min_length > max_length:
        raise CorpusError(f"--min_length {min_length}: is above --max_length {max_length}")
    with stored.workplace(folder, say):
        sources = corpora.sources(corpus, text_feature, tfds_dir, say)
        text = corpora.fingerprint(sources, _told(progress, "reading", sources))
        if tokenizer is None:
            texts = corpora.read(sources, _told(progress, "training the tokenizer", sources))
            name = f"{text[:16]}-{vocab_size}"
            model = stored.once_trained(folder, name, lambda: tokenization.train(texts, vocab_size).to_str().encode())
        else:
            model = tokenization.load(tokenizer).to_str().encode()
        settings = {
            "format": FORMAT,
            "nupunkt": importlib.metadata.version("nupunkt"),
            "text_sha256": text,
            "tokenizer_sha256": hashlib.sha256(model).hexdigest(),
            "max_length": max_length,
            "min_length": min_length,
        }
        fingerprint = stored.digest(settings)
        target = folder / f"sentences-{fingerprint[:16]}"
        if not target.exists():
            say(f"preparing the text in {target}")
            _build(target, sources, model, fingerprint, settings, progress)
        facts = stored.opened(target, fingerprint)
        vocabulary = tokenization.vocabulary(tokenization.load(str(target / TOKENIZER)))
        trained = f"WordPiece, at most {vocab_size} tokens, trained on this text"
        asked = {"corpus": list(corpus), "tokenizer": tokenizer or trained}
        return Prepared(target, fingerprint, target / TOKENIZER, vocabulary, {**asked, **facts})


def _told(progress: Progress, phase: str, sources: Iterable[corpora.Source]) -> Callable[[int], None]:
    size = sum(source.size for source in sources)
    return lambda taken: progress(phase, taken, size)


def _build(
    target: Path,
    sources: list[corpora.Source],
    model: bytes,
    fingerprint: str,
    settings: dict[str, Any],
    progress: Progress,
) -> None:
    with stored.built(target) as folder:
        (folder / TOKENIZER).write_bytes(model)
        tokenizer = tokenization.load(str(folder / TOKENIZER))
        vocabulary = tokenization.vocabulary(tokenizer)
        texts = corpora.read(sources, _told(progress, "tokenising", sources))
        tokens, counts = _tokenised(texts, tokenizer, vocabulary, settings["max_length"], settings["min_length"])
        if corpora.fingerprint(sources) != settings["text_sha256"]:
            raise CorpusError("--corpus: changed while it was read; start again")
        stored.write(folder, "text_sentences", tokens, progress)
        stored.seal(folder, fingerprint, {**settings, **counts, "vocabulary": vocabulary.size})


def _tokenised(
    texts: Iterable[str], tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary, max_length: int, min_length: int
) -> tuple[dict[str, Sentences], dict[str, Any]]:
    dtype = stored.dtype_for(vocabulary.size)
    ids, lengths = array.array(dtype.char), array.array("i")
    letters = array.array("q")
    documents = characters = dropped = cut = 0
    for text in texts:
        documents += 1
        characters += len(text)
        found = corpora.sentences(text)
        for start in range(0, len(found), TOKENISED_AT_ONCE):
            batch = found[start : start + TOKENISED_AT_ONCE]
            encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            for sentence, encoding in zip(batch, encoded, strict=True):
                tokens = encoding.ids
                cut += len(tokens) > max_length - 2
                tokens = [vocabulary.cls, *tokens[: max_length - 2], vocabulary.sep]
                if len(tokens) < max(min_length, 3):
                    dropped += 1
                    continue
                ids.extend(tokens)
                lengths.append(len(tokens))
                letters.append(len(sentence))
    number = len(lengths)
    if number == 0:
        raise CorpusError(f"--corpus: no sentence long enough: none of {dropped} has {min_length} tokens or more")
    ends = [number * end // ENDS[-1] for end in ENDS]
    starts = [0, *ends[:-1]]
    if any(start == end for start, end in zip(starts, ends, strict=True)):
        raise CorpusError(f"--corpus: {number} sentences of {min_length} tokens or more are too few to be split 70/10/20")
    flat = np.frombuffer(ids, dtype)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    split = {
        name: Sentences(flat[offsets[start] : offsets[end]], offsets[start : end + 1] - offsets[start])
        for name, start, end in zip(SPLITS, starts, ends, strict=True)
    }
    facts = {
        "documents": documents,
        "characters": characters,
        "dropped": dropped,
        "cut": cut,
        "splits": {
            name: {
                "sentences": end - start,
                "tokens": len(split[name].ids),
                "characters": int(np.sum(letters[start:end], dtype=np.int64)),
            }
            for name, start, end in zip(SPLITS, starts, ends, strict=True)
        },
    }
    return split, facts
