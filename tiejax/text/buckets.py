"""Buckets of token frequency, by which losses are told apart."""

import numpy as np
from jaxtyping import Int

from tiejax.text.twins import Twins

EDGES = (0, 100, 1000, 10_000)  # ranks at which a bucket begins


def buckets(count: Int[np.ndarray, "vocabulary"], twins: Twins) -> tuple[list[str], Int[np.ndarray, "all_tokens"]]:
    """Return the buckets' names, and the bucket of every id: by rank of frequency in training; twins last.

    count: how often each original token occurs in the training split.
    """
    rank = np.empty(len(count), np.int32)
    rank[np.argsort(-count, kind="stable")] = np.arange(len(count))
    edges = [edge for edge in EDGES if edge < len(count)]
    names = [f"{low + 1:,}-{high:,}" for low, high in zip(edges, [*edges[1:], len(count)], strict=True)]
    of_original = np.searchsorted(edges, rank, side="right") - 1
    return [*names, "twins"], np.concatenate([of_original, np.full(len(twins.ids), len(names))]).astype(np.int32)
