"""Batches of labelled sentences, packed into rows on the host in a random order that differs between seeds and conditions."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tiejax.text.packing import Packing, lay_out, one_per_row, pack, prefetched
from tiejax.training.sources import stacked
from tiejax.transfer.encoding import NO_LABEL, Encoded

ROWS_TRIED, ROWS_SPARE = 1000, 2


class TaskRows(NamedTuple):
    """Rows of labelled sentences that do not attend to one another; leaves `[..., rows, length]`.

    tokens: ids, including padding. segments: number of the sentence in its row, from 1; 0 is padding. label: index of the label
    to predict at each token, or -1 for none.
    """

    tokens: np.ndarray
    segments: np.ndarray
    label: np.ndarray


def packed_rows(data: Encoded, packing: Packing, rows: int, row_length: int, padding: int) -> TaskRows:
    """Return the first `rows` rows of a packing, followed by empty rows if it has fewer."""
    starts = packing.starts[: rows + 1]
    layout = lay_out(data.offsets, packing.order[: starts[-1]], np.diff(starts), row_length)

    def filled(empty: int, values: np.ndarray) -> np.ndarray:
        leaf = np.full(rows * row_length, empty, np.int32)
        leaf[layout.target] = values
        return leaf.reshape(rows, row_length)

    return TaskRows(
        filled(padding, data.ids[layout.source]), filled(0, layout.segment), filled(NO_LABEL, data.label[layout.source])
    )


def all_rows(data: Encoded, row_length: int, padding: int, rows_at_once: int, packed: bool = True) -> TaskRows:
    """Return every sentence once, in rows `[batches, rows_at_once, length]`; the last batch is padded with empty rows.

    packed: whether sentences share rows; otherwise row i contains sentence i.
    """
    order = np.arange(len(data.lengths))
    packing = pack(data.lengths, order, row_length, np.random.default_rng(0)) if packed else one_per_row(order)
    rows = len(packing.starts) - 1
    every = packed_rows(data, packing, rows + -rows % rows_at_once, row_length, padding)
    return TaskRows(*(leaf.reshape(-1, rows_at_once, row_length) for leaf in every))


def rows_of_batch(lengths: np.ndarray, sentences: int, row_length: int) -> int:
    """Return a number of rows that hold `sentences` random sentences: two more than the maximum over a thousand draws."""
    rng = np.random.default_rng(0)
    sentences = min(sentences, len(lengths))
    most = 0
    for _ in range(ROWS_TRIED):
        drawn = rng.choice(len(lengths), sentences, replace=False)
        most = max(most, len(pack(lengths, drawn, row_length, rng).starts) - 1)
    return min(sentences, most + ROWS_SPARE)


@dataclasses.dataclass(frozen=True)
class TaskFeed:
    """Feed of a fine-tuning ensemble: `batch_size` sentences per step in `rows` rows, every sentence once per epoch.

    Epochs begin with a new step, so that their last step can have fewer sentences. Sentences that do not fit into the rows are
    left out, in fewer than one step in a thousand. Of rows split into parts, part p has every `parts`-th one, from p on.
    """

    data: Encoded
    row_length: int
    padding: int
    batch_size: int
    rows: int
    window: int = 32

    @property
    def steps_of_epoch(self) -> int:
        """The number of steps of an epoch."""
        return -(-len(self.data.lengths) // self.batch_size)

    def open(self, seeds: Sequence[tuple[int, int]], own: range, parts: int, first: int) -> Iterator[TaskRows]:
        """Yield the windows from index `first` on: leaves `[seeds, window, rows of the parts in own, length]`."""

        def window(number: int) -> TaskRows:
            steps = range(number * self.window, (number + 1) * self.window)
            by_name = {name: [self.step(name, step, own, parts) for step in steps] for name in dict.fromkeys(seeds)}
            rows: TaskRows = stacked([by_name[name] for name in seeds])
            return rows

        return prefetched(window, self.window, first)

    def step(self, name: tuple[int, int], number: int, own: range, parts: int) -> TaskRows:
        """Return the parts `own` of the rows of step `number`. name: the seed and the condition."""
        epoch, place = divmod(number, self.steps_of_epoch)
        order = np.random.default_rng([*name, epoch]).permutation(len(self.data.lengths))
        batch = order[place * self.batch_size : (place + 1) * self.batch_size]
        packing = pack(self.data.lengths, batch, self.row_length, np.random.default_rng(0))
        rows = packed_rows(self.data, packing, self.rows + -self.rows % parts, self.row_length, self.padding)
        return TaskRows(*(np.concatenate([leaf[part::parts] for part in own]) for leaf in rows))
