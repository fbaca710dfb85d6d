"""How many nearest neighbours of a token two embedding tables agree on."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from scipy import stats

from tiejax.geometry.table_rows import Table, check_tables, read_rows, row_blocks

NOBODY = np.iinfo(np.int64).min


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
    bytes_per_query = 4 * max(first.shape[1], second.shape[1])
    shares = np.concatenate(
        [
            _common(nearest_neighbours(first, queries[block], k), nearest_neighbours(second, queries[block], k)) / k
            for block in row_blocks(len(queries), bytes_per_query)
        ]
    )
    estimate = float(shares.mean())
    return Overlap(estimate, _interval(shares, rows), len(queries), rows, k, k / (rows - 1))


def nearest_neighbours(table: Table, queries: Int[np.ndarray, "queries"], k: int) -> Int[np.ndarray, "queries k"]:
    """Return, for some ascending rows, the k other rows of largest cosine, in no order; -1 where there are fewer.

    The queries are held in memory, the table is read by blocks. Rows of norm 0 have no neighbours and are none.
    """
    q, q_there = _unit(read_rows(table, queries))
    best = np.full((len(queries), k), NOBODY)
    for block in row_blocks(int(table.shape[0]), 4 * table.shape[1] + 8 * len(queries)):
        rows, there = _unit(read_rows(table, block))
        keys = _keys(q @ rows.T, block.start)
        keys[:, ~there] = NOBODY
        itself = (queries >= block.start) & (queries < block.stop)
        keys[itself, queries[itself] - block.start] = NOBODY
        best = np.partition(np.concatenate([best, keys], axis=1), -k, axis=1)[:, -k:]
    best[~q_there] = NOBODY
    return np.where(best == NOBODY, -1, ~best & 0xFFFFFFFF)


def _keys(similarity: np.ndarray, start: int) -> np.ndarray:
    """Return integers that order rows by similarity and, where it is equal, by row, the first highest.

    Positive floats compare as their bits do, negative ones the other way round; the low half holds the inverted row.
    """
    bits = similarity.view(np.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    row = np.arange(start, start + similarity.shape[1])
    return (ordered << 32) | (0xFFFFFFFF - row)


def _unit(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of norm 1, and which rows had a norm."""
    norm = np.sqrt(np.vecdot(rows, rows))
    rows /= np.where(norm > 0, norm, 1)[:, None]
    return rows, norm > 0


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
