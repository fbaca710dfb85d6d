"""Sources of a step's data: read on the host in windows, or drawn ahead on the device; feeds of examples and of a function."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Int

from tiejax.training.keys import SeedKey, SeedName
from tiejax.training.placement import DATA, Layout

PyTree = Any


@runtime_checkable
class Feed(Protocol):
    """Data that the host reads in windows of consecutive steps: window w serves the steps from w * window on.

    With `Ensemble(source=feed)`, `sample` receives the feed's data for its seed and step.
    """

    @property
    def window(self) -> int:
        """The number of steps in a window."""

    def open(self, seeds: Sequence[SeedName], own: range, parts: int, first: int) -> Iterator[PyTree]:
        """Return an iterator over windows, as trees of numpy arrays `[seeds, window, rows, ...]`, which may be used again.

        Args:
            seeds: the seeds to read for.
            own: numbers of the row parts to read.
            parts: number of equal parts into which the rows of each step are split.
            first: number of the first window.
        """


class DrawAhead(NamedTuple):
    """Random draws for many steps at a time, where one large computation is faster than many small ones.

    For recorders, `sample` is called without the draw (its argument `fed` is None) and must return the same batch.

    Attributes:
        draw: (seed_key, step) -> tree of arrays, passed to `sample` as `fed` at that step.
        steps: number of steps to draw for at a time, even if fewer remain.
    """

    draw: Callable[[SeedKey, jax.Array], PyTree]
    steps: int


def share_of(sharding: NamedSharding, seeds: int, parts: int) -> tuple[range, range]:
    """Return the slice of a window of `seeds` seeds, with rows split into `parts` parts, that this process reads.

    That is, positions in the padded list of seeds, and numbers of the row parts.
    """
    places = sharding.addressable_devices_indices_map((seeds, 1, parts)).values()
    mine = [(place[0].indices(seeds), place[2].indices(parts)) for place in places if place is not None]
    own_seeds, own_parts = (
        range(min(axis[0] for axis in axes), max(axis[1] for axis in axes)) for axes in zip(*mine, strict=True)
    )
    return own_seeds, own_parts


class FeedWindows:
    """The windows of a feed on the devices: each process reads its own share, and reads ahead while the devices compute."""

    def __init__(self, feed: Feed, layout: Layout, seeds: list[SeedName]) -> None:
        self._feed, self._sharding = feed, NamedSharding(layout.mesh, layout.fed_spec)
        self._seeds, self._parts = layout.pad(seeds), layout.mesh.shape[DATA]
        self._own_seeds, self._own_parts = share_of(self._sharding, len(self._seeds), self._parts)
        self._windows: dict[int, PyTree] = {}
        self._source: Iterator[PyTree] | None = None
        self._next = 0  # number of the window that `_source` yields next

    def at(self, cursor: int) -> PyTree:
        """Return the window of a step, and drop all others."""
        self.read_ahead(cursor)
        number = cursor // self._feed.window
        self._windows = {number: self._windows[number]}
        return self._windows[number]

    def read_ahead(self, cursor: int) -> None:
        """Read the window of a step, unless it has been read; earlier windows are kept."""
        number = cursor // self._feed.window
        if number in self._windows:
            return
        if self._source is None or number != self._next:
            seeds = [self._seeds[place] for place in self._own_seeds]
            self._source = self._feed.open(seeds, self._own_parts, self._parts, number)
        self._windows[number] = jax.tree.map(self._placed, next(self._source))
        self._next = number + 1

    def _placed(self, leaf: np.ndarray) -> jax.Array:
        """Put this process's share `[seeds, steps, rows, ...]` of a leaf on its devices, as part of the global array."""
        if isinstance(leaf, np.ndarray):
            leaf = leaf.copy()  # jax may use the memory itself, and the feed fills it again while the devices compute
        part_rows = leaf.shape[2] // len(self._own_parts)
        shape = (len(self._seeds), leaf.shape[1], part_rows * self._parts, *leaf.shape[3:])
        first_seed, first_row = self._own_seeds.start, self._own_parts.start * part_rows

        def part(index: Any) -> np.ndarray:
            (low, high, _), (first, last, _) = index[0].indices(shape[0]), index[2].indices(shape[2])
            return leaf[low - first_seed : high - first_seed, :, first - first_row : last - first_row]

        return jax.make_array_from_callback(shape, self._sharding, part)


def check_parts(rows: int, parts: int) -> None:
    """Raise ValueError unless the rows of a step can be divided evenly among the devices of a member."""
    if rows % parts:
        raise ValueError(f"rows: {parts} devices cannot share {rows} rows of a step evenly; give a multiple of {parts}")


class ExampleFeed(NamedTuple):
    """The batches of consecutive steps, each of `rows` examples (a `Feed`).

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

    def seen(self, seed: int, steps: int) -> Int[np.ndarray, " examples"]:
        """Return the numbers of the examples that a seed reads in its first steps, each once, ascending."""
        places = self.first * self.rows + np.arange(steps * self.rows)
        return np.unique(self._at(functools.lru_cache(self._order), seed, places))

    def open(self, seeds: Sequence[SeedName], own: range, parts: int, first: int) -> Iterator[PyTree]:
        """Yield windows from number `first` on, `[seeds, window, own rows, ...]`."""
        if min(self.rows, self.window) < 1:
            raise ValueError(f"rows and window: expected at least 1, got {self.rows} and {self.window}")
        lengths = {len(leaf) for leaf in jax.tree.leaves(self.examples)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"examples: expected arrays of one length, at least 1, got {sorted(lengths)}")
        order = functools.lru_cache(maxsize=2 * len(seeds))(self._order)
        check_parts(self.rows, parts)
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
    """The batches that a function makes on the host (a `Feed`).

    Attributes:
        make: (seed, step) -> batch, a tree of arrays.
        first: the step that the ensemble counts as 0.
        window: number of steps that are made at a time.
        last: the step after the last one that is made; the rest of the last window repeats its batch.
    """

    make: Callable[[int, int], PyTree]
    first: int = 0
    window: int = 1
    last: int | None = None

    def open(self, seeds: Sequence[SeedName], own: range, parts: int, first: int) -> Iterator[PyTree]:
        """Yield windows from number `first` on, `[seeds, window, own rows, ...]`."""

        def part(batch: PyTree) -> PyTree:
            for leaf in jax.tree.leaves(batch):
                if not np.ndim(leaf):
                    raise ValueError("make: expected arrays whose first axis is that of the rows, got a number")
                check_parts(len(leaf), parts)
            # Copied: the function may return the same buffer again.
            return jax.tree.map(
                lambda leaf: np.array(leaf[own.start * len(leaf) // parts : own.stop * len(leaf) // parts]), batch
            )

        expected: PyTree = None

        def made(seed: int, step: int) -> PyTree:
            nonlocal expected
            batch = self.make(seed, step)
            kind = jax.tree.map(lambda leaf: (np.shape(leaf), str(np.asarray(leaf).dtype)), batch)
            expected = kind if expected is None else expected
            if kind != expected:
                raise ValueError(
                    f"the batch of seed {seed} and step {step} is {kind}, and the first one {expected}; make all alike"
                )
            return batch

        while True:
            steps = range(self.first + first * self.window, self.first + (first + 1) * self.window)
            last = steps.stop if self.last is None else self.last
            # The window that follows the last step, at which only records are taken, repeats the last batch.
            within = range(min(steps.start, last - 1), min(steps.stop, last))
            batches = [[part(made(seed, step)) for step in within] for seed, _ in seeds]
            yield stacked([row + row[-1:] * (len(steps) - len(within)) for row in batches])
            first += 1


def stacked(batches: Sequence[Sequence[PyTree]]) -> PyTree:
    """Return a tree whose leaves are arrays `[seed, step, ...]` of the leaves of batches."""
    by_seed = [jax.tree.map(lambda *leaves: np.stack(leaves), *row) for row in batches]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *by_seed)
