"""Tokens of a checkpoint: their texts, and their counts in a corpus."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Int
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tiejax.checkpoints.hub.checkpoint import read_json
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.reading import Progress
from tiejax.text import corpus
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.sources import TFDS
from tiejax.text.tokenizer import MOST_IDS, bpe, byte_level, encoded, in_batches, in_parts, load

CHARACTERS = 2**18  # longer documents are encoded in parts
TOGETHER = 16  # parts encoded at a time


class Tokens(NamedTuple):
    """A checkpoint's tokenizer. whole: whether it can encode; a vocab.json without merges.txt only gives the tokens' texts."""

    tokenizer: tokenizers.Tokenizer
    file: Path
    whole: bool


def find_tokens(folder: Path, name: str | None = None) -> Tokens | None:
    """Return the tokenizer of a checkpoint, None if it has none.

    Looks for tokenizer.json, vocab.txt, and vocab.json with merges.txt, in this order. name: a file, or a name on the hub, to
    use instead. Raises CorpusError or CheckpointError if the tokenizer cannot be read.
    """
    if name is not None:
        return Tokens(load(name), Path(name), True)
    if (folder / "tokenizer.json").exists():
        return Tokens(load(str(folder / "tokenizer.json")), folder / "tokenizer.json", True)
    if (folder / "vocab.txt").exists():
        tokenizer, settings = load(str(folder / "vocab.txt")), _settings(folder)
        lower, accents, chinese = (settings.get(name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"))
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=lower is not False, strip_accents=accents, handle_chinese_chars=chinese is not False
        )
        return Tokens(tokenizer, folder / "vocab.txt", True)
    if (folder / "vocab.json").exists():
        return _byte_level(folder)
    return None


def _settings(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, which tokenizer.json would contain as well; empty if there is none."""
    file = folder / "tokenizer_config.json"
    return read_json(file) if file.exists() else {}


def _byte_level(folder: Path) -> Tokens:
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    ids = read_json(vocabulary)
    if not ids or not all(type(number) is int and 0 <= number < MOST_IDS for number in ids.values()):
        raise CheckpointError(f"{vocabulary}: expected tokens, each with an id, an integer from 0 to {MOST_IDS - 1}")
    whole = merges.exists()
    try:
        model = bpe(ids, merges) if whole else models.BPE(ids, [])
    except OSError as error:
        raise CheckpointError(f"{merges}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{merges}: does not fit {vocabulary.name}: {first_line(error)}") from None
    tokenizer = byte_level(model)
    if _settings(folder).get("add_prefix_space") is True:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return Tokens(tokenizer, vocabulary, whole)


def text_of(tokens: Tokens, token: int) -> str:
    """Return the printable text of a token, with spaces as ␣ and line breaks escaped; "" if the tokenizer has no such id."""
    tokenizer = tokens.tokenizer
    text = tokenizer.id_to_token(token)
    if text is None:
        return ""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        # Byte-level tokens spell bytes as letters. A token that is only part of a character keeps that spelling.
        decoded = tokenizer.decode([token], skip_special_tokens=False)
        text = decoded if decoded and "\ufffd" not in decoded else text
    shown = text.replace(" ", "␣").replace("\u2581", "␣")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in shown)


def count_in_corpus(
    tokens: Tokens, name: str, rows: int, progress: Progress
) -> tuple[Int[np.ndarray, " rows"], dict[str, Any]]:
    """Return the counts of `count_tokens` in a corpus, and an entry for a report.

    name: a text file or a folder of text files. progress: called with (phase, tokens counted, None). Raises CorpusError.
    """
    if name.startswith(TFDS):
        raise CorpusError(f"corpus {name}: expected a text file or a folder of text files")
    documents = corpus.read(corpus.sources([name]))
    counts = count_tokens(tokens, documents, rows, lambda number: progress("tokens counted", number, None))
    numbers = {"tokens": int(counts.sum()), "different": int((counts > 0).sum())}
    return counts, {"corpus": name, **numbers, "tokenizer": tokens.file.name}


def count_tokens(
    tokens: Tokens, documents: Iterable[str], rows: int, seen: Callable[[int], None] = lambda number: None
) -> Int[np.ndarray, " rows"]:
    """Count the tokens of documents, without added special tokens.

    rows: number of rows of the table. seen: called with the number of tokens counted so far. Raises CorpusError if the
    tokenizer cannot encode, or produces an id outside the table.
    """
    if not tokens.whole:
        raise CorpusError(f"corpus: {tokens.file} alone cannot encode a text; add merges.txt or tokenizer.json to its folder")
    counts = np.zeros(rows, np.int64)
    parts = (part for document in documents for part in in_parts(tokens.tokenizer, document, CHARACTERS))
    for batch in in_batches(parts, TOGETHER):
        for encoding in encoded(tokens.tokenizer, batch):
            occurrences = np.bincount(np.asarray(encoding.ids, np.int64), minlength=rows)
            if len(occurrences) > rows:
                raise CorpusError(
                    f"corpus: {tokens.file}: a token has the id {len(occurrences) - 1}, but the input table has {rows} rows; "
                    "use the tokenizer of the checkpoint"
                )
            counts += occurrences
        seen(int(counts.sum()))
    return counts
