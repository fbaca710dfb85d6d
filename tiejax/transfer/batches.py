"""Batches of labelled sentences: packed into rows on the host, in an order of its own for every seed and condition."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grain
import numpy as np

from tiejax.text.packing import Packing, lay_out, one_a_row, pack
from tiejax.transfer.encoding import NOTHING, Encoded

ROWS_TRIED, ROWS_SPARE = 1000, 2


class TaskRows(NamedTuple):
    """Rows of labelled sentences, which do not see each other.

    tokens: padded. segments: number of the sentence in its row, from 1; 0 is padding. label: the number of the label that is
    asked for at a token, -1 where none is. Leaves are [..., rows, length].
    """

    tokens: np.ndarray
    segments: np.ndarray
    label: np.ndarray


def packed_rows(data: Encoded, packing: Packing, rows: int, row_length: int, padding: int) -> TaskRows:
    """Return the first `rows` rows of a packing, empty ones where it has fewer."""
    starts = packing.starts[: rows + 1]
    laid = lay_out(data.offsets, packing.order[: starts[-1]], np.diff(starts), row_length)

    def filled(empty: int, values: np.ndarray) -> np.ndarray:
        leaf = np.full(rows * row_length, empty, np.int32)
        leaf[laid.target] = values
        return leaf.reshape(rows, row_length)

    return TaskRows(filled(padding, data.ids[laid.source]), filled(0, laid.segment), filled(NOTHING, data.label[laid.source]))


def all_rows(data: Encoded, row_length: int, padding: int, rows_at_once: int, packed: bool = True) -> TaskRows:
    """Return every sentence once, `[batches, rows_at_once, length]`; the last rows are empty if need be.

    packed: sentences share rows; otherwise each has one of its own, in their order.
    """
    order = np.arange(len(data.lengths))
    packing = pack(data.lengths, order, row_length, np.random.default_rng(0)) if packed else one_a_row(order)
    rows = len(packing.starts) - 1
    every = packed_rows(data, packing, rows + -rows % rows_at_once, row_length, padding)
    return TaskRows(*(leaf.reshape(-1, rows_at_once, row_length) for leaf in every))


def rows_of_batch(lengths: np.ndarray, sentences: int, row_length: int) -> int:
    """Return how many rows hold so many sentences drawn at random: two more than the most that a thousand draws need."""
    rng = np.random.default_rng(0)
    sentences = min(sentences, len(lengths))
    most = 0
    for _ in range(ROWS_TRIED):
        drawn = rng.choice(len(lengths), sentences, replace=False)
        most = max(most, len(pack(lengths, drawn, row_length, rng).starts) - 1)
    return min(sentences, most + ROWS_SPARE)


@dataclasses.dataclass(frozen=True)
class TaskFeed:
    """The feed of a fine-tuning ensemble: `batch_size` sentences a step, every sentence once an epoch, in `rows` rows.

    A step belongs to one epoch: what is left of an epoch's sentences, fewer than a batch, is its last step. Sentences that do
    not fit into the rows, which is rarer than once in a thousand steps, are left out. Where rows are split into parts, each
    part holds its share of the sentences.
    """

    data: Encoded
    row_length: int
    padding: int
    batch_size: int
    rows: int
    window: int = 32

    @property
    def steps_of_epoch(self) -> int:
        """The steps in which every sentence is visited once."""
        return -(-len(self.data.lengths) // self.batch_size)

    def open(self, seeds: Sequence[tuple[int, int]], own: range, parts: int, first: int) -> Iterator[TaskRows]:
        """Return the windows from `first` on, leaves `[seeds, window, rows of these parts, length]`."""
        source = _TaskWindows(self, seeds, own, parts)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
        windows = iter(grain.MapDataset.source(source).to_iter_dataset(options))
        windows.set_state({"next_index": first})
        return windows

    def step(self, name: tuple[int, int], number: int, own: range, parts: int) -> TaskRows:
        """Return these parts of the rows of one step, for a seed and its condition."""
        epoch, place = divmod(number, self.steps_of_epoch)
        order = np.random.default_rng([*name, epoch]).permutation(len(self.data.lengths))
        batch = order[place * self.batch_size : (place + 1) * self.batch_size]
        rows = -(-self.rows // parts)
        made = []
        for part in own:
            mine = batch[part::parts]
            packing = pack(self.data.lengths, mine, self.row_length, np.random.default_rng(0)) if len(mine) else NO_ROWS
            made.append(packed_rows(self.data, packing, rows, self.row_length, self.padding))
        return TaskRows(*(np.concatenate(leaves) for leaves in zip(*made, strict=True)))


NO_ROWS = Packing(np.zeros(0, np.int64), np.zeros(1, np.int64))


@dataclasses.dataclass(frozen=True)
class _TaskWindows:
    """The windows of a feed, by number, as grain reads them."""

    feed: TaskFeed
    seeds: Sequence[tuple[int, int]]
    own: range
    parts: int

    def __len__(self) -> int:
        return 2**31 // self.feed.window

    def __getitem__(self, number: int) -> TaskRows:
        steps = range(number * self.feed.window, (number + 1) * self.feed.window)
        of_name = {
            name: [self.feed.step(name, step, self.own, self.parts) for step in steps] for name in dict.fromkeys(self.seeds)
        }
        by_seed = [TaskRows(*(np.stack(leaf) for leaf in zip(*of_name[name], strict=True))) for name in self.seeds]
        return TaskRows(*(np.stack(leaf) for leaf in zip(*by_seed, strict=True)))
