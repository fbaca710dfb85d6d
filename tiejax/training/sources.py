"""Sources of a step's data: read on the host in windows, or drawn ahead on the device."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import NamedSharding

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
        """Return an iterator over windows, as trees of numpy arrays `[seeds, window, rows, ...]`.

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


class Share(NamedTuple):
    """The slice of a window that this process reads.

    Attributes:
        seeds: positions in the padded list of seeds.
        parts: numbers of the row parts.
    """

    seeds: range
    parts: range


def share_of(sharding: NamedSharding, seeds: int, parts: int) -> Share:
    """Return the share of this process's devices when `seeds` seeds have rows split into `parts` parts."""
    places = sharding.addressable_devices_indices_map((seeds, 1, parts)).values()
    mine = [(place[0].indices(seeds), place[2].indices(parts)) for place in places if place is not None]
    return Share(*(range(min(axis[0] for axis in axes), max(axis[1] for axis in axes)) for axes in zip(*mine, strict=True)))


class FeedWindows:
    """The windows of a feed on the devices: each process reads its own share, and reads ahead while the devices compute."""

    def __init__(self, feed: Feed, layout: Layout, seeds: list[SeedName]) -> None:
        self._feed, self._sharding = feed, NamedSharding(layout.mesh, layout.fed_spec)
        self._seeds, self._parts = layout.pad(seeds), layout.mesh.shape[DATA]
        self._share = share_of(self._sharding, len(self._seeds), self._parts)
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
            seeds = [self._seeds[place] for place in self._share.seeds]
            self._source = self._feed.open(seeds, self._share.parts, self._parts, number)
        self._windows[number] = jax.tree.map(self._placed, next(self._source))
        self._next = number + 1

    def _placed(self, leaf: np.ndarray) -> jax.Array:
        """Put this process's share `[seeds, steps, rows, ...]` of a leaf on its devices, as part of the global array."""
        part_rows = leaf.shape[2] // len(self._share.parts)
        shape = (len(self._seeds), leaf.shape[1], part_rows * self._parts, *leaf.shape[3:])
        first_seed, first_row = self._share.seeds.start, self._share.parts.start * part_rows

        def part(index: Any) -> np.ndarray:
            (low, high, _), (first, last, _) = index[0].indices(shape[0]), index[2].indices(shape[2])
            return leaf[low - first_seed : high - first_seed, :, first - first_row : last - first_row]

        return jax.make_array_from_callback(shape, self._sharding, part)
