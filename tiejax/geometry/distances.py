"""Euclidean distances between embeddings of pairs of symbols, and summaries of these distances over training."""

import itertools
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Pair = tuple[int, int]


def symbol_pairs(vocabulary: int) -> list[Pair]:
    """Return all pairs of symbols in the order of recorded distances: (0, 1), (0, 2), ..."""
    return list(itertools.combinations(range(vocabulary), 2))


def pairwise_distances(
    table: Float[Array, "vocabulary width"] | Float[np.ndarray, "vocabulary width"],
) -> Float[Array, " pairs"]:
    """Return the Euclidean distances |e_i - e_j| between the rows of a table, in the order of `symbol_pairs`."""
    table = jnp.asarray(table)
    table = table.astype(jnp.promote_types(table.dtype, jnp.float32))
    first, second = np.array(symbol_pairs(table.shape[0]), int).reshape(-1, 2).T
    return jnp.sqrt(jnp.sum(jnp.square(table[first] - table[second]), axis=-1))


def group_pairs(first: Sequence[int], second: Sequence[int] | None = None) -> list[Pair]:
    """Return the pairs of symbols within one group, or between two groups."""
    if second is None:
        return list(itertools.combinations(first, 2))
    return [(min(i, j), max(i, j)) for i in first for j in second]


def mean_distance(distances: np.ndarray, vocabulary: int, pairs: Iterable[Pair]) -> np.ndarray:
    """Return the mean over the given pairs of recorded distances `[..., pairs]`; NaN if no pair is given."""
    index = symbol_pairs(vocabulary)
    columns = [index.index(pair) for pair in pairs]
    if not columns:
        return np.full(distances.shape[:-1], np.nan)
    return distances[..., columns].mean(-1)


# Two symbols can become bitwise equal; this lower bound keeps the logarithm finite, far below any distance that a figure shows.
SMALLEST = 1e-12


def log_distance(distances: np.ndarray) -> np.ndarray:
    """Return ln(distance), where distances below 1e-12 count as 1e-12."""
    return np.log(np.maximum(distances, SMALLEST))


def fluctuation(values: np.ndarray, period: int) -> np.ndarray:
    r"""Return the mean absolute change from record to record that does not recur a period earlier, `[...]`.

    Over the last two periods of trajectories x `[..., record]`, whose changes are D_t = x_{t+1} - x_t,

        mean over the last period of |D_t - D_{t - period}| / 2,

    the mean absolute deviation of the changes from their mean at the same phase of the period. Whatever repeats with the
    period, and a constant drift, do not count.

    period: number of records per period, at least 1. The fluctuation is NaN if there are fewer than two periods of changes.
    """
    changes = np.diff(values[..., -(2 * period + 1) :], axis=-1)
    if changes.shape[-1] < 2 * period:
        return np.full(values.shape[:-1], np.nan)
    return np.asarray(np.abs(changes[..., period:] - changes[..., :period]).mean(-1) / 2)
