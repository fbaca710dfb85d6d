"""Overlap of the nearest neighbours of tokens in two embedding tables."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from scipy import stats

from tiejax.geometry.products import prepared, row_products
from tiejax.geometry.table_rows import LARGE, SMALL, Rows, Table, read_ahead, row_blocks, row_norms, stored_rows

NONE = np.iinfo(np.int64).min
QUERY_BLOCKS = 4  # size of a block of queries, in blocks of rows; larger blocks mean fewer passes over the table


class Overlap(NamedTuple):
    """Mean share of common neighbours, in [0, 1].

    interval: 95 % interval; None if every row was a query, so that nothing was estimated, or if only one was. queries: number
    of rows whose neighbours were compared, out of `rows` in the tables. chance: the share for independent tables.
    """

    estimate: float
    interval: tuple[float, float] | None
    queries: int
    rows: int
    k: int
    chance: float


def neighbour_overlap(first: Table, second: Table, k: int = 10, sample: int = 2000, seed: int = 0) -> Overlap:
    """Return the overlap of the k nearest neighbours of tokens in two tables: mean_i |N_first(i) and N_second(i)| / k.

    N(i) are the k other rows with the largest cosine to row i; of equal cosines, the first rows. A row of norm 0 is not a
    neighbour of any row and has none: the mean is over rows i that are not 0 in either table, 0 without such rows. chance: the
    overlap of independent sets, k (c - 1) / ((n_1 - 1) (n_2 - 1)) for n_1 and n_2 rows that are not 0, of which c are not 0 in
    both (estimated from the sample); without rows of 0, k / (rows - 1). k: from 1 to rows - 1. sample: number of rows i, at
    least 2, drawn without replacement from `seed`; all rows if the tables have no more. interval: estimate +- 1.96 s sqrt((1 -
    sample / rows) / sample), the normal approximation for draws without replacement. Widths may differ.
    Source: A. Lopardo et al. 2026, arXiv:2603.26663 (k = 10).
    """
    rows = int(first.shape[0])
    if int(second.shape[0]) != rows:
        raise ValueError(f"expected tables with equally many rows, got {rows:,} and {int(second.shape[0]):,}")
    if not 1 <= k < rows or sample < 2:
        raise ValueError(f"expected k from 1 to {rows - 1:,} and a sample of at least 2, got {k} and {sample}")
    queries = np.arange(rows)
    if sample < rows:
        queries = np.sort(np.random.default_rng(seed).choice(rows, sample, replace=False))
    parts, asking = [], np.zeros(3)  # queries with neighbours in both, in the first and in the second
    for block in query_blocks(len(queries), first, second):
        sets = [nearest_neighbours(table, queries[block], k) for table in (first, second)]
        have = [(found >= 0).any(axis=1) for found in sets]
        both = have[0] & have[1]
        parts.append(_common(*(found[both] for found in sets)) / k)
        asking += [both.sum(), have[0].sum(), have[1].sum()]
    shares = np.concatenate(parts)
    if not len(shares):
        return Overlap(0.0, None, 0, rows, k, 0.0)
    common, *others = asking * rows / len(queries)
    chance = (common - 1) / k * math.prod(min(1.0, k / max(number - 1, 1)) for number in others)
    return Overlap(float(shares.mean()), _interval(shares, round(common)), len(shares), rows, k, min(1.0, chance))


def query_blocks(queries: int, first: Table, second: Table) -> Iterator[slice]:
    """Yield slices that divide the queries into blocks; both tables are read once per block."""
    return row_blocks(queries, 4 * max(first.shape[1], second.shape[1]) // QUERY_BLOCKS)


def nearest_neighbours(table: Table, queries: Int[np.ndarray, " queries"], k: int) -> Int[np.ndarray, "queries k"]:
    """Return the k other rows of largest cosine for each query, unordered; -1 where there are fewer.

    queries: ascending row numbers. Their rows are held in memory; the table is read in blocks. Rows of norm 0 have no
    neighbours and are not neighbours.
    """
    asked = stored_rows(table, queries)
    asked_norms = row_norms(asked)
    q = prepared(_near_one(asked, asked_norms))
    best = np.full((len(queries), k), NONE)
    blocks = row_blocks(int(table.shape[0]), 2 * (table.shape[1] + len(queries)))
    for block, (rows, norms) in read_ahead(lambda block: _with_norms(table, block), blocks):
        # The norm of the query does not affect the order.
        similarity = row_products(q, rows) / np.where(norms > 0, norms, 1)
        similarity[:, norms == 0] = -np.inf
        itself = (queries >= block.start) & (queries < block.stop)
        similarity[itself, queries[itself] - block.start] = -np.inf
        best = _better(best, similarity, block.start)
    best[asked_norms == 0] = NONE
    return np.where(best == NONE, -1, ~best & 0xFFFFFFFF)


def _better(best: np.ndarray, similarity: np.ndarray, start: int) -> np.ndarray:
    """Return the k highest keys of each query among its best so far and the rows from `start` on.

    Only rows above the lowest of the k best are considered, which are few; of equal rows the first counts.
    """
    query, column = np.nonzero(similarity > _similarity(best.min(axis=1))[:, None])
    number = np.bincount(query, minlength=len(best))
    keys = np.full((len(best), number.max(initial=0)), NONE)
    keys[query, np.arange(len(query)) - np.repeat(np.cumsum(number) - number, number)] = _keys(
        similarity[query, column], start + column
    )
    k = best.shape[1]
    return np.partition(np.concatenate([best, keys], axis=1), -k, axis=1)[:, -k:]


def _keys(similarity: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return integers that order rows by similarity, and equal similarities by row, the first row highest.

    Positive floats compare like their bits, negative floats in reverse order; the low half holds the inverted row number.
    """
    return (_in_order(similarity.view(np.int32)).astype(np.int64) << 32) | (0xFFFFFFFF - row)


def _similarity(key: np.ndarray) -> np.ndarray:
    """Return the similarity of a key; -inf for NONE."""
    return np.where(key == NONE, np.float32(-np.inf), _in_order((key >> 32).astype(np.int32)).view(np.float32))


def _in_order(bits: np.ndarray) -> np.ndarray:
    """Map the bits of floats to integers of the same order, and back: the function is its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _with_norms(table: Table, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    stored = stored_rows(table, rows)
    norms = row_norms(stored)
    if ((norms > 0) & ((norms < SMALL) | (norms > LARGE))).any():
        stored, norms = _near_one(stored, norms), np.frexp(norms)[0]
    return stored, norms.astype(np.float32, copy=False)


def _near_one(rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return rows scaled by powers of two so that their norms are near 1, which is exact and prevents underflow of products."""
    return np.ldexp(rows.astype(np.float32, copy=False), -np.frexp(norms)[1][:, None]).astype(rows.dtype)


def _common(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    both = np.sort(np.concatenate([first, second], axis=1), axis=1)  # a row in both lists now appears twice in succession
    return ((both[:, 1:] == both[:, :-1]) & (both[:, 1:] >= 0)).sum(axis=1)


def _interval(shares: np.ndarray, rows: int) -> tuple[float, float] | None:
    drawn = len(shares)
    if drawn == rows or drawn < 2:
        return None
    error = float(shares.std(ddof=1)) * math.sqrt((1 - drawn / rows) / drawn)
    low, high = stats.norm.interval(0.95, loc=shares.mean(), scale=error) if error else (shares.mean(), shares.mean())
    return max(float(low), 0.0), min(float(high), 1.0)
