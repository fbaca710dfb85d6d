"""How much each row of a table counts: how often its token occurs in a corpus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.tokens import count_tokens, find_tokens
from tiejax.text import corpus
from tiejax.text.errors import CorpusError
from tiejax.text.sources import TFDS


def token_weights(
    name: str | None, folder: Path, rows: int, tell: Callable[[str, int, int | None], None]
) -> tuple[Float[np.ndarray, "rows"] | None, dict[str, Any] | None]:
    """Return a weight for each row, the count of its token in the corpus plus one, and what a report says of them.

    Without the one, rows of tokens that the corpus lacks would be free to become anything. Weights are scaled to a mean of one;
    None where no corpus is named. Raises CheckpointError or CorpusError.
    """
    if name is None:
        return None, None
    tokens = find_tokens(folder)
    if tokens is None:
        raise CorpusError(f"corpus: {folder} has no tokenizer.json, vocab.txt or vocab.json to count its tokens with")
    if name.startswith(TFDS):
        raise CorpusError(f"corpus {name}: must be a text file or a folder of them")
    documents = corpus.read(corpus.sources([name]))
    counts = count_tokens(tokens, documents, rows, lambda number: tell("tokens counted", number, None))
    facts = {
        "corpus": name,
        "tokenizer": tokens.file.name,
        "tokens": int(counts.sum()),
        "different": int((counts > 0).sum()),
        "added": 1,
    }
    return (counts + 1) / np.mean(counts + 1), facts
