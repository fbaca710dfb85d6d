"""Buckets of tokens of similar frequency, to report losses by frequency."""

import numpy as np
from jaxtyping import Int

from tiejax.text.twins import Twins

EDGES = (0, 100, 1000, 10_000)  # frequency ranks at which buckets begin


def entropy(count: Int[np.ndarray, " vocabulary"]) -> float:
    """Return the entropy -sum_t p_t ln p_t, in nats, of the frequencies p with these counts.

    It is the loss of a model that knows only token frequencies.
    """
    p = count[count > 0] / count.sum()
    return float(-np.sum(p * np.log(p)))


def buckets(count: Int[np.ndarray, " vocabulary"], twins: Twins) -> tuple[list[str], Int[np.ndarray, " all_tokens"]]:
    """Assign original tokens to buckets by their frequency rank, and all twins to one last bucket.

    count: occurrences of each original token in the training split. Returns the names of the buckets, and for every id the
    index of its bucket.
    """
    rank = np.empty(len(count), np.int32)
    rank[np.argsort(-count.astype(np.int64), kind="stable")] = np.arange(len(count))
    edges = [edge for edge in EDGES if edge < len(count)]
    names = [f"{low + 1:,}-{high:,}" for low, high in zip(edges, [*edges[1:], len(count)], strict=True)]
    original_bucket = np.searchsorted(edges, rank, side="right") - 1
    return [*names, "twins"], np.concatenate([original_bucket, np.full(len(twins.ids), len(names))]).astype(np.int32)
