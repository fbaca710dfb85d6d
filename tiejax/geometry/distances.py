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
) -> Float[Array, "pairs"]:
    """Return the Euclidean distances |e_i - e_j| between the rows of a table, in the order of `symbol_pairs`."""
    first, second = np.array(symbol_pairs(table.shape[0])).T
    return jnp.sqrt(jnp.sum(jnp.square(jnp.asarray(table[first] - table[second])), axis=-1))


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


def area_under_log(distances: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the mean of ln(distance) over training, by the trapezoid rule, for trajectories `[..., record]`.

    This is the area under the log distance divided by the number of steps it covers: lower means that a pair converged sooner.
    """
    log = np.log(np.maximum(distances, SMALLEST))
    return np.trapezoid(log, steps, axis=-1) / (steps[-1] - steps[0])


def log_roughness(distances: np.ndarray) -> np.ndarray:
    """Return the mean |ln d_{t+1} - ln d_t| over successive records of trajectories `[..., record]`; NaN for one record."""
    if distances.shape[-1] < 2:
        return np.full(distances.shape[:-1], np.nan)
    return np.abs(np.diff(np.log(np.maximum(distances, SMALLEST)), axis=-1)).mean(-1)
