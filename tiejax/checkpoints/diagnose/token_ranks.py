"""Frequency ranks of a checkpoint's tokens: counted in a corpus, or else the token ids."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.checkpoints.diagnose.options import Options
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.reading import Progress
from tiejax.checkpoints.hub.tokens import Tokens, count_in_corpus, find_tokens
from tiejax.geometry.ranks import frequency_ranks


class Ranked(NamedTuple):
    """Frequency ranks of tokens, from 1.

    counts: occurrences in the corpus, None without a corpus. counted: mask of the tokens that occur in the corpus, all True
    without one. facts: the entry in results.json.
    """

    ranks: np.ndarray
    counts: np.ndarray | None
    counted: np.ndarray
    facts: dict[str, Any]


def rank_tokens(
    options: Options, folder: Path, rows: int, progress: Progress, without_texts: Callable[[ValueError], None]
) -> tuple[Tokens | None, Ranked]:
    """Return the tokenizer, or None if there is none, and the ranks of the tokens.

    rows: number of rows of the input table. without_texts: called with the error when the tokenizer cannot be read and no
    option needs it; tokens then have no texts. Raises CheckpointError or CorpusError.
    """
    tokens = None
    try:
        tokens = find_tokens(folder, options.tokenizer)
    except ValueError as error:
        if options.tokenizer is not None or options.corpus is not None:
            raise
        without_texts(error)
    file = tokens.file.name if tokens else None
    if options.corpus is None:
        return tokens, Ranked(np.arange(1, rows + 1), None, np.ones(rows, bool), {"by": "id", "tokenizer": file})
    if tokens is None:
        lacks = f": {folder} has no tokenizer.json, vocab.txt or vocab.json; name one with "
        raise CheckpointError(Field("corpus"), lacks, Field("tokenizer"))
    counts, facts = count_in_corpus(tokens, options.corpus, rows, progress)
    return tokens, Ranked(frequency_ranks(counts), counts, counts > 0, {"by": "corpus", **facts})
