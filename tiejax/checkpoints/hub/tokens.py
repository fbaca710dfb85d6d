"""What the tokens of a checkpoint are: their texts, and how often each occurs in a text of one's own."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Int
from tokenizers import decoders, models, normalizers

from tiejax.checkpoints.hub.checkpoint import read_json
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.tokenizer import bpe, byte_level, in_batches, in_parts, load

# Long documents are encoded in parts.
CHARACTERS = 2**18
TOGETHER = 16


class Tokens(NamedTuple):
    """A checkpoint's tokenizer. whole: it can encode; a vocab.json without its merges only names tokens."""

    tokenizer: tokenizers.Tokenizer
    file: Path
    whole: bool


def find_tokens(folder: Path, name: str | None = None) -> Tokens | None:
    """Return the tokenizer of a checkpoint: tokenizer.json, or vocab.txt, or vocab.json with merges.txt; None without one.

    name: a file or hub name to use instead. Raises CorpusError or CheckpointError where it cannot be read.
    """
    if name is not None:
        return Tokens(load(name), Path(name), True)
    if (folder / "tokenizer.json").exists():
        return Tokens(load(str(folder / "tokenizer.json")), folder / "tokenizer.json", True)
    if (folder / "vocab.txt").exists():
        tokenizer = load(str(folder / "vocab.txt"))
        settings = folder / "tokenizer_config.json"
        if settings.exists() and read_json(settings).get("do_lower_case") is False:
            tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
        return Tokens(tokenizer, folder / "vocab.txt", True)
    if (folder / "vocab.json").exists():
        return _byte_level(folder)
    return None


def _byte_level(folder: Path) -> Tokens:
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    ids = read_json(vocabulary)
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in ids.values()):
        raise CheckpointError(f"{vocabulary}: must give every token an id, a whole number from 0")
    whole = merges.exists()
    try:
        model = bpe(ids, merges) if whole else models.BPE(ids, [])
    except OSError as error:
        raise CheckpointError(f"{merges}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{merges}: does not fit {vocabulary.name}: {first_line(error)}") from None
    return Tokens(byte_level(model), vocabulary, whole)


def text_of(tokens: Tokens, token: int) -> str:
    """Return a token as it may be printed, spaces as ␣ and line ends escaped; "" if the tokenizer has no such id."""
    tokenizer = tokens.tokenizer
    text = tokenizer.id_to_token(token)
    if text is None:
        return ""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        # Bytes are spelled as letters of their own; a token that holds a part of a letter stays so.
        decoded = tokenizer.decode([token], skip_special_tokens=False)
        text = decoded if decoded and "\ufffd" not in decoded else text
    shown = text.replace(" ", "␣").replace("\u2581", "␣")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in shown)


def count_tokens(
    tokens: Tokens, documents: Iterable[str], rows: int, seen: Callable[[int], None] = lambda number: None
) -> Int[np.ndarray, "rows"]:
    """Return how often each token occurs in some documents, special tokens not added.

    rows: tokens of the table. seen: is told how many were counted so far. Raises CorpusError if the tokenizer cannot encode,
    or has an id that the table has not.
    """
    if not tokens.whole:
        raise CorpusError(f"corpus: {tokens.file} alone cannot split a text; merges.txt or tokenizer.json must be beside it")
    counts = np.zeros(rows, np.int64)
    parts = (part for document in documents for part in in_parts(tokens.tokenizer, document, CHARACTERS))
    for batch in in_batches(parts, TOGETHER):
        for encoding in tokens.tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            occurrences = np.bincount(np.asarray(encoding.ids, np.int64), minlength=rows)
            if len(occurrences) > rows:
                raise CorpusError(
                    f"corpus: {tokens.file} gives the id {len(occurrences) - 1}, the input table has {rows} rows: "
                    "the tokenizer is not that of the checkpoint"
                )
            counts += occurrences
        seen(int(counts.sum()))
    return counts
