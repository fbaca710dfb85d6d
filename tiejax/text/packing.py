"""Sentences packed into rows of one length, on the host and by their lengths alone; the rows are read ahead by grain.

An epoch visits every sentence once, in an order of its own for each seed. A row holds whole sentences, each a segment; what is
left of it is padding.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Int64, UInt16

from tiejax.text.languages import Languages

# Sentences of so many are packed together: enough of every length to fill rows, and not enough to order an epoch by length.
POOL = 4096


class Packing(NamedTuple):
    """Which sentences share a row: row r holds order[starts[r]:starts[r + 1]]."""

    order: Int64[np.ndarray, "sentences"]
    starts: Int64[np.ndarray, "rows_and_one"]


def pack(lengths: np.ndarray, order: np.ndarray, row_length: int, rng: np.random.Generator) -> Packing:
    """Pack sentences into rows, pool after pool of the given order: the longest that still fits comes next.

    The rows of a pool are then shuffled, so that neighbours are no more alike in length than chance makes them.
    Raises ValueError if a sentence is longer than a row.
    """
    if len(lengths) and lengths.max() > row_length:
        raise ValueError(f"a sentence of {lengths.max()} tokens does not fit into a row of {row_length}")
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


def one_a_row(order: np.ndarray) -> Packing:
    """Return rows that hold one sentence each, the rest padding, as published."""
    return Packing(order.astype(np.int64), np.arange(len(order) + 1, dtype=np.int64))


def filled_up(packing: Packing, multiple: int) -> Packing:
    """Return the rows followed by so many empty ones that they are a multiple of a number."""
    missing = -(len(packing.starts) - 1) % multiple
    return packing._replace(starts=np.append(packing.starts, np.repeat(packing.starts[-1:], missing)))


def _pack_pool(lengths: np.ndarray, pool: np.ndarray, row_length: int) -> list[list[int]]:
    by_length: list[list[int]] = [[] for _ in range(row_length + 1)]
    for sentence, length in zip(pool.tolist(), lengths[pool].tolist(), strict=True):
        by_length[length].append(sentence)
    # One bit for each length of which there is a sentence left: the longest that fits is the highest bit below.
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
    """Rows of tokens. tokens: padded with `padding`. segments: number of the sentence in its row, from 1; 0 is padding.

    row: number of the row in its step. Leaves are [..., rows, length] and [..., rows].
    """

    tokens: np.ndarray
    segments: UInt16[np.ndarray, "*steps rows length"]
    row: np.ndarray


@dataclasses.dataclass
class Stream:
    """The rows of one seed, epoch after epoch without end, each a pure function of seed and number.

    ids, offsets: the sentences' tokens, one after the other, and where each begins. packed: whether sentences share rows.
    languages: of the sentences, and how often each is read (default: every sentence once an epoch).
    multiple: each epoch ends with empty rows, so that its rows are a multiple of this.
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
            raise ValueError("there are no sentences")
        self._lengths = np.diff(self.offsets)
        self._ends: list[int] = []  # the number of rows up to the end of each epoch
        self._packings: dict[int, Packing] = {}

    def packing(self, epoch: int) -> Packing:
        """Return which sentences share a row in an epoch."""
        if epoch not in self._packings:
            rng = np.random.default_rng([self.seed, epoch])
            order = rng.permutation(len(self._lengths))
            order = order if self.languages is None else self.languages.sample(order, rng)
            packing = pack(self._lengths, order, self.row_length, rng) if self.packed else one_a_row(order)
            packing = filled_up(packing, self.multiple)
            # A batch may end one epoch and begin the next; older ones are not asked for again.
            before = {epoch - 1: self._packings[epoch - 1]} if epoch - 1 in self._packings else {}
            self._packings = before | {epoch: packing}
        return self._packings[epoch]

    def _epoch_of(self, row: int) -> tuple[int, int]:
        """Return the epoch that a row belongs to, and the number of its first row."""
        while not self._ends or self._ends[-1] <= row:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + len(self.packing(len(self._ends)).starts) - 1)
        epoch = int(np.searchsorted(self._ends, row, side="right"))
        return epoch, self._ends[epoch - 1] if epoch else 0

    def rows(self, first: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and segments `[number, row_length]` of the rows from `first` on."""
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
        """Copy sentences, `counts` of them to a row, with one gather."""
        laid = lay_out(self.offsets, sentences, counts, self.row_length)
        tokens = np.full(len(counts) * self.row_length, self.padding, self.ids.dtype)
        segments = np.zeros(len(counts) * self.row_length, np.uint16)
        tokens[laid.target], segments[laid.target] = self.ids[laid.source], laid.segment
        shape = len(counts), self.row_length
        return tokens.reshape(shape), segments.reshape(shape)


class Laid(NamedTuple):
    """Sentences laid out in rows, token by token: its place in the text and in the flattened rows, and its segment, from 1."""

    source: Int64[np.ndarray, "tokens"]
    target: Int64[np.ndarray, "tokens"]
    segment: Int64[np.ndarray, "tokens"]


def lay_out(offsets: np.ndarray, sentences: np.ndarray, counts: np.ndarray, row_length: int) -> Laid:
    """Return where every token of these sentences lies in rows, `counts` of them to a row; offsets: where each begins."""
    lengths = np.diff(offsets)[sentences]
    ends = np.cumsum(lengths)
    within = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    # Where each sentence begins in the rows: behind those before it in its own row.
    row = np.repeat(np.arange(len(counts)), counts)
    first_of_row = np.repeat(np.cumsum(counts) - counts, counts)
    before = (ends - lengths) - (ends - lengths)[first_of_row]
    return Laid(
        np.repeat(offsets[sentences], lengths) + within,
        np.repeat(row * row_length + before, lengths) + within,
        np.repeat(np.arange(len(sentences)) - first_of_row + 1, lengths),
    )


def part_of(rows: int, own: range, parts: int) -> np.ndarray:
    """Return the numbers of the rows in some of so many equal parts; those from `rows` on are empty."""
    size = -(-rows // parts)
    return np.arange(own.start * size, own.stop * size)


def take_rows(leaf: np.ndarray, wanted: np.ndarray, empty: int) -> np.ndarray:
    """Return these rows of `[..., rows, length]`; beyond the last, rows of nothing but `empty`."""
    missing = max(0, int(wanted[-1]) + 1 - leaf.shape[-2])
    widths = [(0, 0)] * (leaf.ndim - 2) + [(0, missing), (0, 0)]
    return np.asarray(np.pad(leaf, widths, constant_values=empty)[..., wanted, :])


@dataclasses.dataclass(frozen=True)
class _StepWindows:
    """The rows of windows of steps, by number, as grain reads them: a part of the rows of each step, for some seeds."""

    streams: Sequence[Stream]
    rows: int
    window: int
    own: range
    parts: int

    def __len__(self) -> int:
        return 2**31 // self.window

    def __getitem__(self, number: int) -> Rows:
        wanted = part_of(self.rows, self.own, self.parts)
        by_seed = [self._of(stream, number) for stream in self.streams]
        tokens, segments = (np.stack(leaves) for leaves in zip(*by_seed, strict=True))
        tokens = take_rows(tokens, wanted, self.streams[0].padding)
        return Rows(tokens, take_rows(segments, wanted, 0), np.broadcast_to(wanted.astype(np.int32), tokens.shape[:3]))

    def _of(self, stream: Stream, number: int) -> tuple[np.ndarray, np.ndarray]:
        total = self.window * self.rows
        tokens, segments = stream.rows(number * total, total)
        shape = self.window, self.rows, stream.row_length
        return tokens.reshape(shape), segments.reshape(shape)


@dataclasses.dataclass(frozen=True)
class TextFeed:
    """The feed of an ensemble on text: `rows` rows a step, in windows of so many steps, read ahead by grain.

    Any window can be the first: a run resumes where it stopped, and packs what came before without reading it. Where rows are
    split into parts that do not divide them, the last part ends with empty rows: a step is the same on any number of devices.
    order: let all seeds read the rows of this one. languages: as of `Stream`. epochs_apart: an epoch's last step has the rows
    that are left, then empty ones, so that the next epoch begins with a step of its own.
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
        """Return the rows that a seed, or an order, reads."""
        multiple = self.rows if self.epochs_apart else 1
        return Stream(self.ids, self.offsets, self.row_length, self.padding, seed, self.packed, self.languages, multiple)

    def open(self, seeds: Sequence[tuple[int, int]], own: range, parts: int, first: int) -> Iterator[Rows]:
        """Return the windows from `first` on, leaves `[seeds, window, len(own) ceil(rows / parts), ...]`."""
        # A seed may occur again, where seeds are filled up to the number of devices.
        names = [seed if self.order is None else self.order for seed, _ in seeds]
        by_name = {name: self.stream(name) for name in names}
        source = _StepWindows([by_name[name] for name in names], self.rows, self.window, own, parts)
        # One thread: it packs and gathers faster than any device trains, and streams remember how they packed last.
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
        windows = iter(grain.MapDataset.source(source).to_iter_dataset(options))
        windows.set_state({"next_index": first})
        return windows


class Filling(NamedTuple):
    """What a row holds on average: tokens, tokens that can be masked (no [CLS], no [SEP]), and the variance of the latter."""

    tokens: float
    maskable: float
    variance: float


def filling(lengths: np.ndarray, row_length: int, packed: bool) -> Filling:
    """Return what the rows of an epoch hold."""
    order = np.arange(len(lengths))
    packing = pack(lengths, order, row_length, np.random.default_rng(0)) if packed else one_a_row(order)
    in_row = np.add.reduceat((lengths - 2)[packing.order], packing.starts[:-1])
    tokens = float(lengths.sum()) / (len(packing.starts) - 1)
    return Filling(tokens, float(in_row.mean()), float(in_row.var()))


def rows_for(lengths: np.ndarray, sentences: int | float, row_length: int) -> int:
    """Return how many rows hold about so many sentences."""
    return max(1, round(sentences * float(np.mean(lengths)) / row_length))
