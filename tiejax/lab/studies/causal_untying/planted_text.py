"""Text with planted symbols, and what results.json says of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tiejax.text import planted_pairs
from tiejax.text.errors import CorpusError
from tiejax.text.planted_pairs import Planting
from tiejax.text.streams import Streams

MARKED = 1.0  # share of the sentences that begin with a marker


class Plant(NamedTuple):
    """What is planted, and the training and the validation text with markers, which are cut into blocks and then written.

    ends: whether each original token ends a sentence. rngs: of each text.
    """

    planting: Planting
    ends: np.ndarray
    marked: list[np.ndarray]
    rngs: list[np.random.Generator]

    def write(self, *texts: np.ndarray) -> list[np.ndarray]:
        """Return the blocks of both texts with twins and ciphers; raises CorpusError if too much would be planted."""
        written = [
            planted_pairs.write(self.planting, blocks, self.ends, rng) for blocks, rng in zip(texts, self.rngs, strict=True)
        ]
        if (share := planted_pairs.share(self.planting, written[0])) > planted_pairs.MOST_PLANTED:
            raise CorpusError(
                f"planted: {share:.1%} of the tokens would be planted, expected at most {planted_pairs.MOST_PLANTED:.0%}; use "
                "text with longer sentences"
            )
        return written


def plant(streams: Streams, splits: Sequence[np.ndarray]) -> Plant:
    """Choose what is planted by the first of two texts, and insert markers in both; raises CorpusError.

    All draws are the same in every run on the same text.
    """
    is_word, ends = planted_pairs.words_of(streams.token_texts(), splits[0])
    planting = planted_pairs.choose(np.bincount(splits[0], minlength=streams.vocabulary), is_word)
    rngs = [np.random.default_rng([0, number]) for number in range(len(splits))]
    marked = [planted_pairs.with_markers(planting, ids, ends, MARKED, rng) for ids, rng in zip(splits, rngs, strict=True)]
    return Plant(planting, ends, marked, rngs)


def facts(streams: Streams, planting: Planting, ends: np.ndarray, train: np.ndarray, judged: np.ndarray) -> dict[str, Any]:
    """Return what is planted, as in results.json: words by kind, the planted share of `train`, and the choices in `judged`."""
    texts = streams.token_texts()
    made = planted_pairs.choices(planting, judged, ends)
    return {
        "words": {kind: [texts[token].strip() for token in tokens] for kind, tokens in planting.twins.items()},
        "ciphered": [texts[token].strip() for token in planting.ciphered],
        "unrelated": [[texts[token].strip() for token in pair] for pair in planting.unrelated],
        "pairs_of_markers": planting.markers,
        "symbols": planting.vocabulary - planting.size,
        "share": planted_pairs.share(planting, train),
        "least_loss": planted_pairs.least_loss(made),
        "choices": {name: int((made.kind == number).sum()) for number, name in enumerate(planted_pairs.CHOICES)},
    }
