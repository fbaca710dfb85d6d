"""Weights of a table's rows, from the counts of their tokens in a corpus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.reading import check_memory
from tiejax.checkpoints.hub.tokens import count_tokens, find_tokens
from tiejax.text import corpus
from tiejax.text.errors import CorpusError
from tiejax.text.sources import TFDS

ROW_BYTES = 32  # of all arrays with one entry per row


def token_weights(
    name: str | None, folder: Path, rows: int, progress: Callable[[str, int, int | None], None]
) -> tuple[Float[np.ndarray, "rows"] | None, dict[str, Any] | None]:
    """Return the weights of the rows, and an entry for the report; both None if `name`, the corpus, is None.

    A weight is the count of the row's token in the corpus plus one, scaled to a mean of one. Without adding one, rows of
    tokens that do not occur would be unconstrained. folder: the checkpoint's folder, with its tokenizer. Raises CheckpointError
    or CorpusError.
    """
    if name is None:
        return None, None
    tokens = find_tokens(folder)
    if tokens is None:
        raise CorpusError(f"corpus: {folder} has no tokenizer.json, vocab.txt or vocab.json, which are needed to count tokens")
    if name.startswith(TFDS):
        raise CorpusError(f"corpus {name}: expected a text file or a folder of text files")
    check_memory(f"corpus: weights of {rows:,} rows", ROW_BYTES * rows)
    documents = corpus.read(corpus.sources([name]))
    counts = count_tokens(tokens, documents, rows, lambda number: progress("tokens counted", number, None))
    facts = {
        "corpus": name,
        "tokenizer": tokens.file.name,
        "tokens": int(counts.sum()),
        "different": int((counts > 0).sum()),
        "added": 1,
    }
    return (counts + 1) / np.mean(counts + 1), facts
