"""Packing of sentences into rows of equal length on the host, and the feed of such rows to an ensemble.

An epoch visits every sentence once, in an order that differs between seeds. A row contains whole sentences, one segment each,
then padding. Packing depends only on the lengths of the sentences; grain prefetches the rows.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import grain
import numpy as np
from jaxtyping import Int64, UInt16

from tiejax.text.languages import Languages

# Number of sentences packed together: large enough to fill rows well, small enough that the rows of an epoch stay shuffled.
POOL = 4096

T = TypeVar("T")


class Packing(NamedTuple):
    """Assignment of sentences to rows: row r contains the sentences order[starts[r]:starts[r + 1]]."""

    order: Int64[np.ndarray, " sentences"]
    starts: Int64[np.ndarray, " rows_and_one"]


def pack(lengths: np.ndarray, order: np.ndarray, row_length: int, rng: np.random.Generator) -> Packing:
    """Pack sentences into rows, pool by pool in the given order, always adding the longest sentence that still fits.

    The rows of a pool are then shuffled, so that the lengths of neighbouring rows are not correlated.
    Raises ValueError if a sentence is longer than a row.
    """
    if len(lengths) and lengths.max() > row_length:
        raise ValueError(f"a sentence of {lengths.max()} tokens does not fit into a row of {row_length} tokens")
    placed: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    for start in range(0, len(order), POOL):
        rows = _pack_pool(lengths, order[start : start + POOL], row_length)
        shuffled = [rows[number] for number in rng.permutation(len(rows))]
        placed.append(np.concatenate(shuffled))
        sizes.append(np.array([len(row) for row in shuffled]))
    return Packing(
        np.concatenate(placed).astype(np.int64), np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    )


def one_per_row(order: np.ndarray) -> Packing:
    """Return the packing with one sentence per row, for rows that are padded instead of packed."""
    return Packing(order.astype(np.int64), np.arange(len(order) + 1, dtype=np.int64))


def _pack_pool(lengths: np.ndarray, pool: np.ndarray, row_length: int) -> list[list[int]]:
    by_length: list[list[int]] = [[] for _ in range(row_length + 1)]
    for sentence, length in zip(pool.tolist(), lengths[pool].tolist(), strict=True):
        by_length[length].append(sentence)
    # Bit n is set while a sentence of n tokens is left, so the highest bit up to `left` is the longest sentence that fits.
    present = sum(1 << length for length, those in enumerate(by_length) if those)
    rows = []
    while present:
        row, left = [], row_length
        while fitting := present & ((2 << left) - 1):
            length = fitting.bit_length() - 1
            row.append(by_length[length].pop())
            if not by_length[length]:
                present ^= 1 << length
            left -= length
        rows.append(row)
    return rows


class Rows(NamedTuple):
    """Rows of tokens: leaves [..., rows, length], and `row` [..., rows].

    tokens: padded with the padding token. segments: number of the sentence in its row, from 1; 0 is padding. row: number of the
    row in its step.
    """

    tokens: np.ndarray
    segments: UInt16[np.ndarray, "*steps rows length"]
    row: np.ndarray


@dataclasses.dataclass
class Stream:
    """The endless sequence of rows of one seed, epoch after epoch; each row is a pure function of the seed and its number.

    ids, offsets: the concatenated tokens of the sentences, and where each sentence begins. packed: whether sentences share
    rows. languages: sampling of the sentences by language (default: every sentence once per epoch).
    multiple: pad each epoch with empty rows to a multiple of this number of rows.
    """

    ids: np.ndarray
    offsets: np.ndarray
    row_length: int
    padding: int
    seed: int
    packed: bool = True
    languages: Languages | None = None
    multiple: int = 1

    def __post_init__(self) -> None:
        if not len(self.offsets) > 1:
            raise ValueError("expected at least one sentence, got none")
        self._lengths = np.diff(self.offsets)
        self._ends: list[int] = []  # cumulative number of rows at the end of each epoch
        self._packings: dict[int, Packing] = {}

    def packing(self, epoch: int) -> Packing:
        """Return the assignment of sentences to rows in an epoch."""
        if epoch not in self._packings:
            rng = np.random.default_rng([self.seed, epoch])
            order = rng.permutation(len(self._lengths))
            order = order if self.languages is None else self.languages.sample(order, rng)
            packing = pack(self._lengths, order, self.row_length, rng) if self.packed else one_per_row(order)
            empty = -(len(packing.starts) - 1) % self.multiple
            packing = packing._replace(starts=np.append(packing.starts, np.repeat(packing.starts[-1:], empty)))
            # A batch can span two epochs; older ones are not needed again.
            before = {epoch - 1: self._packings[epoch - 1]} if epoch - 1 in self._packings else {}
            self._packings = before | {epoch: packing}
        return self._packings[epoch]

    def _epoch_of(self, row: int) -> tuple[int, int]:
        """Return the epoch of a row and the number of the first row of that epoch."""
        while not self._ends or self._ends[-1] <= row:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + len(self.packing(len(self._ends)).starts) - 1)
        epoch = int(np.searchsorted(self._ends, row, side="right"))
        return epoch, self._ends[epoch - 1] if epoch else 0

    def rows(self, first: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and segments, both `[number, row_length]`, of `number` rows starting at row `first`."""
        sentences: list[np.ndarray] = []
        counts: list[np.ndarray] = []
        at = first
        while at < first + number:
            epoch, begin = self._epoch_of(at)
            order, starts = self.packing(epoch)
            here = slice(at - begin, min(first + number - begin, len(starts) - 1))
            sentences.append(order[starts[here.start] : starts[here.stop]])
            counts.append(np.diff(starts[here.start : here.stop + 1]))
            at += here.stop - here.start
        return self._gather(np.concatenate(sentences), np.concatenate(counts))

    def _gather(self, sentences: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Copy sentences into rows with one gather; counts: number of sentences of each row."""
        layout = lay_out(self.offsets, sentences, counts, self.row_length)
        tokens = np.full(len(counts) * self.row_length, self.padding, self.ids.dtype)
        segments = np.zeros(len(counts) * self.row_length, np.uint16)
        tokens[layout.target], segments[layout.target] = self.ids[layout.source], layout.segment
        shape = len(counts), self.row_length
        return tokens.reshape(shape), segments.reshape(shape)


class Layout(NamedTuple):
    """Positions of tokens in rows: for each token its index in the text and in the flattened rows, and its segment (from 1)."""

    source: Int64[np.ndarray, " tokens"]
    target: Int64[np.ndarray, " tokens"]
    segment: Int64[np.ndarray, " tokens"]


def lay_out(offsets: np.ndarray, sentences: np.ndarray, counts: np.ndarray, row_length: int) -> Layout:
    """Lay out sentences in rows. offsets: where each sentence begins in the text. counts: number of sentences of each row."""
    lengths = np.diff(offsets)[sentences]
    ends = np.cumsum(lengths)
    within = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    # Start of each sentence in its row: after the sentences before it in the same row.
    row = np.repeat(np.arange(len(counts)), counts)
    first_of_row = np.repeat(np.cumsum(counts) - counts, counts)
    before = (ends - lengths) - (ends - lengths)[first_of_row]
    return Layout(
        np.repeat(offsets[sentences], lengths) + within,
        np.repeat(row * row_length + before, lengths) + within,
        np.repeat(np.arange(len(sentences)) - first_of_row + 1, lengths),
    )


def take_rows(leaf: np.ndarray, wanted: np.ndarray, empty: int) -> np.ndarray:
    """Select rows of `leaf`, `[..., rows, length]`; row numbers beyond the last give rows filled with `empty`."""
    missing = max(0, int(wanted[-1]) + 1 - leaf.shape[-2])
    widths = [(0, 0)] * (leaf.ndim - 2) + [(0, missing), (0, 0)]
    return np.asarray(np.pad(leaf, widths, constant_values=empty)[..., wanted, :])


def prefetched(window: Callable[[int], T], steps: int, first: int) -> Iterator[T]:
    """Yield window(first), window(first + 1), ..., of `steps` steps each; grain computes the next one meanwhile."""
    # One thread packs and gathers faster than any device trains, and streams cache their last packings without a lock.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    windows = iter(grain.MapDataset.range(2**31 // steps).map(window).to_iter_dataset(options))
    windows.set_state({"next_index": first})
    return windows


@dataclasses.dataclass(frozen=True)
class TextFeed:
    """Feed of an ensemble on text: `rows` rows per step, in windows of `window` steps, prefetched by grain.

    A run can resume at any window: earlier epochs are packed again without reading their tokens. If the number of parts does
    not divide the rows, the last part ends with empty rows, so that a step is the same on any number of devices.
    order: the seed whose rows every seed reads (default: each seed reads its own). languages: as in `Stream`.
    epochs_apart: pad the last step of an epoch with empty rows, so that every epoch begins with a new step.
    """

    ids: np.ndarray
    offsets: np.ndarray
    row_length: int
    padding: int
    rows: int
    packed: bool = True
    window: int = 64
    order: int | None = None
    languages: Languages | None = None
    epochs_apart: bool = False

    def stream(self, seed: int) -> Stream:
        """Return the stream of rows of a seed."""
        multiple = self.rows if self.epochs_apart else 1
        return Stream(self.ids, self.offsets, self.row_length, self.padding, seed, self.packed, self.languages, multiple)

    def open(self, seeds: Sequence[tuple[int, int]], own: range, parts: int, first: int) -> Iterator[Rows]:
        """Yield the windows from index `first` on: leaves `[seeds, window, len(own) * ceil(rows / parts), ...]`."""
        # Seeds can repeat: they are padded to a multiple of the devices.
        names = [seed if self.order is None else self.order for seed, _ in seeds]
        by_name = {name: self.stream(name) for name in names}
        total, shape = self.window * self.rows, (self.window, self.rows, self.row_length)
        size = -(-self.rows // parts)  # of a part; row numbers >= `rows` are empty rows
        wanted = np.arange(own.start * size, own.stop * size)

        def window(number: int) -> Rows:
            by_seed = [by_name[name].rows(number * total, total) for name in names]
            tokens, segments = (np.stack([leaf.reshape(shape) for leaf in leaves]) for leaves in zip(*by_seed, strict=True))
            tokens = take_rows(tokens, wanted, self.padding)
            return Rows(tokens, take_rows(segments, wanted, 0), np.broadcast_to(wanted.astype(np.int32), tokens.shape[:3]))

        return prefetched(window, self.window, first)


class RowAverages(NamedTuple):
    """Average tokens and maskable tokens (all but [CLS] and [SEP]) of a row, and the variance of maskable tokens over rows."""

    tokens: float
    maskable: float
    variance: float


def row_averages(lengths: np.ndarray, row_length: int, packed: bool) -> RowAverages:
    """Return the averages over the rows of one epoch, packed or with one sentence per row."""
    order = np.arange(len(lengths))
    packing = pack(lengths, order, row_length, np.random.default_rng(0)) if packed else one_per_row(order)
    in_row = np.add.reduceat((lengths - 2)[packing.order], packing.starts[:-1])
    tokens = float(lengths.sum()) / (len(packing.starts) - 1)
    return RowAverages(tokens, float(in_row.mean()), float(in_row.var()))


def rows_for(lengths: np.ndarray, sentences: int | float, row_length: int) -> int:
    """Return the number of rows that hold about `sentences` packed sentences."""
    return max(1, round(sentences * float(np.mean(lengths)) / row_length))
