"""The tokens of a checkpoint by rank of frequency: counted in a corpus, or else by their ids."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.tokens import Tokens, count_tokens, find_tokens
from tiejax.geometry.ranks import frequency_ranks
from tiejax.lab.studies.diagnosis.settings import Settings
from tiejax.lab.studies.diagnosis.watched import Tell
from tiejax.text import corpus
from tiejax.text.errors import CorpusError
from tiejax.text.sources import TFDS


class Ranked(NamedTuple):
    """Tokens by rank of frequency. counted: those that a corpus holds, all where ranks are ids. facts: for results.json."""

    ranks: np.ndarray
    counts: np.ndarray | None
    counted: np.ndarray
    facts: dict[str, Any]


def rank_tokens(
    settings: Settings, folder: Path, rows: int, tell: Tell, without_texts: Callable[[ValueError], None]
) -> tuple[Tokens | None, Ranked]:
    """Return the tokenizer, where there is one, and the tokens' ranks, by the corpus or else by id.

    rows: of the input table. without_texts: is told why tokens have none, where nobody asked for a tokenizer that cannot be
    read. Raises CheckpointError or CorpusError.
    """
    tokens = None
    try:
        tokens = find_tokens(folder, settings.tokenizer)
    except ValueError as error:
        if settings.tokenizer is not None or settings.corpus is not None:
            raise
        without_texts(error)
    file = tokens.file.name if tokens else None
    if settings.corpus is None:
        return tokens, Ranked(np.arange(1, rows + 1), None, np.ones(rows, bool), {"by": "id", "tokenizer": file})
    if tokens is None:
        lacks = f": {folder} has no tokenizer.json, vocab.txt or vocab.json; name one by "
        raise CheckpointError(Field("corpus"), lacks, Field("tokenizer"))
    if settings.corpus.startswith(TFDS):
        raise CorpusError(f"corpus {settings.corpus}: must be a text file or a folder of them")
    documents = corpus.read(corpus.sources([settings.corpus]))
    counts = count_tokens(tokens, documents, rows, lambda number: tell("tokens counted", number, None))
    facts = {
        "by": "corpus",
        "corpus": settings.corpus,
        "tokens": int(counts.sum()),
        "different": int((counts > 0).sum()),
        "tokenizer": file,
    }
    return tokens, Ranked(frequency_ranks(counts), counts, counts > 0, facts)
