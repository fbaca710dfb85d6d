"""How many nearest neighbours of a token two embedding tables agree on."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from scipy import stats

from tiejax.geometry.products import prepared, row_products
from tiejax.geometry.table_rows import Rows, Table, check_tables, held_rows, read_ahead, row_blocks

NOBODY = np.iinfo(np.int64).min
QUERY_BLOCKS = 4  # blocks of rows that are held of queries, so that the table is read seldom


class Overlap(NamedTuple):
    """Mean share of common neighbours, in [0, 1]. interval: 95 %, None where every row was a query and nothing was estimated.

    queries: the rows whose neighbours were compared, of `rows` in the tables. chance: what independent tables would give.
    """

    estimate: float
    interval: tuple[float, float] | None
    queries: int
    rows: int
    k: int
    chance: float


def neighbour_overlap(first: Table, second: Table, k: int = 10, sample: int = 2000, seed: int = 0) -> Overlap:
    """Compare the k nearest neighbours of tokens in two tables: estimate = mean_i |N_first(i) and N_second(i)| / k.

    N(i): the k rows of largest cosine with row i, itself excluded, among all rows; of equal ones the first. A row of norm 0
    is similar to no row: it is no neighbour, has none, and so shares none. chance = k / (rows - 1), of two independent sets.
    sample: how many rows i are drawn, without replacement and from `seed`; all of them if there are no more. interval:
    estimate +- 1.96 s sqrt((1 - sample / rows) / sample), the normal approximation for draws without replacement.
    Widths may differ. ValueError: tables that do not fit, k not within 1 to rows - 1, sample below 2.
    Source: A. Lopardo et al. 2026, arXiv:2603.26663 (k = 10).
    """
    rows = check_tables(first, second)
    if not 1 <= k < rows:
        raise ValueError(f"k = {k} neighbours of {rows} rows: k must be within 1 to {rows - 1}")
    if sample < 2:
        raise ValueError(f"sample = {sample}: at least 2 rows must be drawn")
    queries = np.arange(rows)
    if sample < rows:
        queries = np.sort(np.random.default_rng(seed).choice(rows, sample, replace=False))
    shares = np.concatenate(
        [
            _common(nearest_neighbours(first, queries[block], k), nearest_neighbours(second, queries[block], k)) / k
            for block in query_blocks(len(queries), first, second)
        ]
    )
    estimate = float(shares.mean())
    return Overlap(estimate, _interval(shares, rows), len(queries), rows, k, k / (rows - 1))


def query_blocks(queries: int, first: Table, second: Table) -> Iterator[slice]:
    """Cut so many queries into blocks; both tables are read once for each."""
    return row_blocks(queries, 4 * max(first.shape[1], second.shape[1]) // QUERY_BLOCKS)


def nearest_neighbours(table: Table, queries: Int[np.ndarray, "queries"], k: int) -> Int[np.ndarray, "queries k"]:
    """Return, for some ascending rows, the k other rows of largest cosine, in no order; -1 where there are fewer.

    The queries are held in memory, the table is read by blocks. Rows of norm 0 have no neighbours and are none.
    """
    asked = held_rows(table, queries)
    asked_norms = _norms(asked)
    q = prepared(_near_one(asked, asked_norms))
    best = np.full((len(queries), k), NOBODY)
    blocks = row_blocks(int(table.shape[0]), 2 * (table.shape[1] + len(queries)))
    for block, (rows, norms) in read_ahead(lambda block: _with_norms(table, block), blocks):
        # A query's own norm changes nothing of the order.
        similarity = row_products(q, rows) / np.where(norms > 0, norms, 1)
        similarity[:, norms == 0] = -np.inf
        itself = (queries >= block.start) & (queries < block.stop)
        similarity[itself, queries[itself] - block.start] = -np.inf
        best = _better(best, similarity, block.start)
    best[asked_norms == 0] = NOBODY
    return np.where(best == NOBODY, -1, ~best & 0xFFFFFFFF)


def _better(best: np.ndarray, similarity: np.ndarray, start: int) -> np.ndarray:
    """Return the k highest keys of each query among those so far and those of the rows from `start` on.

    Few rows are nearer than the last of the k so far, and of equal ones the first counts: the others are not looked at again.
    """
    query, column = np.nonzero(similarity > _similarity(best.min(axis=1))[:, None])
    number = np.bincount(query, minlength=len(best))
    keys = np.full((len(best), number.max(initial=0)), NOBODY)
    keys[query, np.arange(len(query)) - np.repeat(np.cumsum(number) - number, number)] = _keys(
        similarity[query, column], start + column
    )
    k = best.shape[1]
    return np.partition(np.concatenate([best, keys], axis=1), -k, axis=1)[:, -k:]


def _keys(similarity: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return integers that order rows by similarity and, where it is equal, by row, the first highest.

    Positive floats compare as their bits do, negative ones the other way round; the low half holds the inverted row.
    """
    return (_in_order(similarity.view(np.int32)).astype(np.int64) << 32) | (0xFFFFFFFF - row)


def _similarity(key: np.ndarray) -> np.ndarray:
    """Return the similarity that a key was made of, -inf for nobody's."""
    return np.where(key == NOBODY, np.float32(-np.inf), _in_order((key >> 32).astype(np.int32)).view(np.float32))


def _in_order(bits: np.ndarray) -> np.ndarray:
    """Return the bits of floats as integers in their order, or such integers as the bits; it is its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _with_norms(table: Table, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    held = held_rows(table, rows)
    return held, _norms(held)


def _norms(rows: np.ndarray) -> np.ndarray:
    values = rows.astype(np.float32, copy=False)
    return np.sqrt(np.vecdot(values, values))


def _near_one(rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return rows times the powers of two that bring their norms near 1: nothing is rounded, and no product is too small."""
    return np.ldexp(rows.astype(np.float32, copy=False), -np.frexp(norms)[1][:, None]).astype(rows.dtype)


def _common(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    both = np.sort(np.concatenate([first, second], axis=1), axis=1)  # a row that is in both lists now stands beside itself
    return ((both[:, 1:] == both[:, :-1]) & (both[:, 1:] >= 0)).sum(axis=1)


def _interval(shares: np.ndarray, rows: int) -> tuple[float, float] | None:
    drawn = len(shares)
    if drawn == rows:
        return None
    error = float(shares.std(ddof=1)) * math.sqrt((1 - drawn / rows) / drawn)
    low, high = stats.norm.interval(0.95, loc=shares.mean(), scale=error) if error else (shares.mean(), shares.mean())
    return max(float(low), 0.0), min(float(high), 1.0)
