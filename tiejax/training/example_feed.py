"""Examples as the data of an ensemble: every seed passes over all of them in its own random order, epoch by epoch."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

PyTree = Any
Names = Sequence[tuple[int, int]]  # (seed, number of its condition), as `training.keys.SeedName`


class ExampleFeed(NamedTuple):
    """The batches of consecutive steps, each of `rows` examples (`training.sources.Feed`).

    Step t of seed s reads the examples at positions t * rows, ..., t * rows + rows - 1 of the sequence of its epochs, each a
    random permutation of all examples, drawn from (s, number of the epoch). The condition of a seed makes no difference.

    Attributes:
        examples: arrays `[number, ...]`, or a tree of them.
        rows: examples of a step.
        first: the step that the ensemble counts as 0, for training that continues at it.
        window: number of steps that are read at a time.
    """

    examples: PyTree
    rows: int
    first: int = 0
    window: int = 64

    @property
    def number(self) -> int:
        """The number of examples."""
        return len(jax.tree.leaves(self.examples)[0])

    def open(self, seeds: Names, own: range, parts: int, first: int) -> Iterator[PyTree]:
        """Yield windows from number `first` on, `[seeds, window, own rows, ...]`."""
        order = functools.lru_cache(maxsize=2 * len(seeds))(self._order)
        in_part = self.rows // parts
        of_parts = slice(own.start * in_part, own.stop * in_part)
        while True:
            steps = self.first + first * self.window + np.arange(self.window)
            places = steps[:, None] * self.rows + np.arange(self.rows)[of_parts]
            chosen = [self._at(order, seed, places) for seed, _ in seeds]
            yield jax.tree.map(lambda leaf: np.stack([leaf[at] for at in chosen]), self.examples)  # noqa: B023
            first += 1

    def _order(self, seed: int, epoch: int) -> Int[np.ndarray, "number"]:
        return np.random.default_rng([seed, epoch]).permutation(self.number)

    def _at(self, order: "functools._lru_cache_wrapper[np.ndarray]", seed: int, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the examples at places of a seed's sequence of epochs."""
        epochs, within = places // self.number, places % self.number
        chosen = np.empty_like(within)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            chosen[here] = order(seed, int(epoch))[within[here]]
        return chosen


class FunctionFeed(NamedTuple):
    """The batches that a function makes on the host (`training.sources.Feed`).

    Attributes:
        make: (seed, step) -> batch, a tree of arrays.
        first: the step that the ensemble counts as 0.
        window: number of steps that are made at a time.
    """

    make: Callable[[int, int], PyTree]
    first: int = 0
    window: int = 1

    def open(self, seeds: Names, own: range, parts: int, first: int) -> Iterator[PyTree]:
        """Yield windows from number `first` on, `[seeds, window, own rows, ...]`."""

        def part(batch: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: leaf[own.start * len(leaf) // parts : own.stop * len(leaf) // parts], batch)

        while True:
            steps = range(self.first + first * self.window, self.first + (first + 1) * self.window)
            batches = [[part(self.make(seed, step)) for step in steps] for seed, _ in seeds]
            yield jax.tree.map(np.stack, stacked(batches))
            first += 1


def stacked(batches: Sequence[Sequence[PyTree]]) -> PyTree:
    """Return a tree whose leaves are arrays `[seed, step, ...]` of the leaves of batches."""
    by_seed = [jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *row) for row in batches]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *by_seed)
