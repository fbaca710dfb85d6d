"""The windows of a feed as arrays on the devices; the next one is read while the devices work on this one."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from tiejax.training.ensemble import Feed, SeedName
from tiejax.training.layout import Layout
from tiejax.training.sharding import DATA

PyTree = Any


class Share(NamedTuple):
    """What of a window this process reads: these places of the seeds, and these parts of the rows of each step."""

    seeds: range
    parts: range


def share_of(sharding: NamedSharding, seeds: int, parts: int) -> Share:
    """Return the share that the devices of this process train, of so many seeds whose rows are split into so many parts."""
    places = sharding.addressable_devices_indices_map((seeds, 1, parts)).values()
    mine = [(place[0].indices(seeds), place[2].indices(parts)) for place in places if place is not None]
    return Share(*(range(min(axis[0] for axis in axes), max(axis[1] for axis in axes)) for axes in zip(*mine, strict=True)))


class FeedWindows:
    """The windows of a feed, placed on the devices: each process reads the share that its own devices train."""

    def __init__(self, feed: Feed, layout: Layout, seeds: list[SeedName]) -> None:
        self._feed, self._sharding = feed, NamedSharding(layout.mesh, layout.fed_spec)
        self._seeds, self._parts = layout.pad(seeds), layout.mesh.shape[DATA]
        self._share = share_of(self._sharding, len(self._seeds), self._parts)
        self._held: dict[int, PyTree] = {}
        self._source: Iterator[PyTree] | None = None
        self._next = 0  # the number of the window that the source gives next

    def at(self, cursor: int) -> PyTree:
        """Return the window that serves this step."""
        self.read_ahead(cursor)
        number = cursor // self._feed.window
        # Those before it are done with.
        self._held = {number: self._held[number]}
        return self._held[number]

    def read_ahead(self, cursor: int) -> None:
        """Read the window of this step unless it is there; others are kept."""
        number = cursor // self._feed.window
        if number in self._held:
            return
        if self._source is None or number != self._next:
            seeds = [self._seeds[place] for place in self._share.seeds]
            self._source = self._feed.open(seeds, self._share.parts, self._parts, number)
        self._held[number] = jax.tree.map(self._placed, next(self._source))
        self._next = number + 1

    def _placed(self, leaf: np.ndarray) -> jax.Array:
        """Place this process's share `[seeds, steps, rows, ...]` of a window's leaf among the shares of all."""
        rows_a_part = leaf.shape[2] // len(self._share.parts)
        shape = (len(self._seeds), leaf.shape[1], rows_a_part * self._parts, *leaf.shape[3:])
        first_seed, first_row = self._share.seeds.start, self._share.parts.start * rows_a_part

        def part(index: Any) -> np.ndarray:
            (low, high, _), (first, last, _) = index[0].indices(shape[0]), index[2].indices(shape[2])
            return leaf[low - first_seed : high - first_seed, :, first - first_row : last - first_row]

        return jax.make_array_from_callback(shape, self._sharding, part)
