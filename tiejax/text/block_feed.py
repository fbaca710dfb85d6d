"""Blocks of tokens as the data of an ensemble: every seed passes over all blocks in its own random order, epoch by epoch."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Integer

Names = Sequence[tuple[int, int]]  # (seed, number of its condition), as `training.keys.SeedName`


class BlockFeed(NamedTuple):
    """The batches of consecutive steps, each of `rows` blocks (`training.sources.Feed`).

    Step t of seed s reads the blocks at positions t * rows, ..., t * rows + rows - 1 of the sequence of its epochs, each a
    random permutation of all blocks, drawn from (s, number of the epoch). The condition of a seed makes no difference.

    Attributes:
        blocks: `[number, context]`.
        rows: blocks of a step.
        first: the step that the ensemble counts as 0, for training that continues at it.
        window: number of steps that are read at a time.
    """

    blocks: Integer[np.ndarray, "number context"]
    rows: int
    first: int = 0
    window: int = 64

    def open(self, seeds: Names, own: range, parts: int, first: int) -> Iterator[np.ndarray]:
        """Yield windows from number `first` on, `[seeds, window, own rows, context]`."""
        order = functools.lru_cache(maxsize=2 * len(seeds))(self._order)
        in_part = self.rows // parts
        of_parts = slice(own.start * in_part, own.stop * in_part)
        while True:
            steps = self.first + first * self.window + np.arange(self.window)
            places = steps[:, None] * self.rows + np.arange(self.rows)[of_parts]
            yield np.stack([self.blocks[self._at(order, seed, places)] for seed, _ in seeds])
            first += 1

    def _order(self, seed: int, epoch: int) -> Int[np.ndarray, "number"]:
        return np.random.default_rng([seed, epoch]).permutation(len(self.blocks))

    def _at(self, order: "functools._lru_cache_wrapper[np.ndarray]", seed: int, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the blocks at places of a seed's sequence of epochs."""
        epochs, within = places // len(self.blocks), places % len(self.blocks)
        chosen = np.empty_like(within)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            chosen[here] = order(seed, int(epoch))[within[here]]
        return chosen
