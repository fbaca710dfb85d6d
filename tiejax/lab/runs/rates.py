"""The choice of a learning rate, and of a factor for that of the tables, among several, on seeds that are not reported.

With many pairs of a rate and a factor, *successive halving* over seeds keeps the choice affordable: all are trained with one
seed, and only the best few with the others. All runs have the full length: shorter ones prefer other pairs.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Pair = tuple[float, float]  # a learning rate, and the factor of the tables'
MOST_EXTENSIONS = 3  # of the tried rates and factors, with the first seed and with every seed
KEPT = 4  # pairs that are trained with every seed, of those trained with the first one


class Tried(NamedTuple):
    """Learning rates and factors that were tried, in ascending order.

    Attributes:
        pairs: (learning rate, factor of the tables') of each.
        losses: their final losses `[pair, seed]`, infinite if a model diverged, NaN if it was not trained.
        records: of the models with the best pair, as `FIELD`, `[seed, record, ...]`.
    """

    pairs: Sequence[Pair]
    losses: np.ndarray
    records: Mapping[str, np.ndarray] = {}

    @property
    def best(self) -> int:
        """The number of the pair with the lowest mean loss, of those trained with every seed."""
        return int(np.nanargmin(self.losses.mean(axis=1)))

    @property
    def pair(self) -> Pair:
        """The pair with the lowest mean loss, of those trained with every seed."""
        return self.pairs[self.best]

    @property
    def rate(self) -> float:
        """The learning rate with the lowest mean loss, of those trained with every seed."""
        return self.pair[0]

    @property
    def rates(self) -> np.ndarray:
        """The learning rate of every pair."""
        return np.array([rate for rate, _ in self.pairs])

    @property
    def factors(self) -> np.ndarray:
        """The factor of every pair."""
        return np.array([factor for _, factor in self.pairs])

    @property
    def at_edge(self) -> bool:
        """Whether the best rate or factor is the lowest or the highest of several that were tried."""
        return any(
            len(set(values)) > 1 and values[self.best] in (min(values), max(values)) for values in (self.rates, self.factors)
        )


def choose_rates(
    rates: Sequence[float],
    losses_at: Callable[[Sequence[Pair]], np.ndarray],
    factors: Sequence[float] = (1.0,),
    first_at: Callable[[Sequence[Pair]], np.ndarray] | None = None,
    most: float = 1.0,
) -> Tried:
    """Try all pairs of learning rates and factors, and further ones as long as the best is at an edge, at most three times.

    With `first_at`, more than four pairs are first trained with the first seed alone, and a grid whose best pair is at an edge
    grows by half the lowest or twice the highest value; only the best four are then trained with every seed, and neighbours of
    the best of them at an edge.

    Args:
        rates: learning rates, ascending; of a single one no other is tried.
        losses_at: pairs -> final losses `[pair, seed]`.
        factors: factors of the tables' learning rate, likewise.
        first_at: pairs -> final losses of the first seed `[pair]`.
        most: further rates are below it.
    """
    pairs, first = list(itertools.product(rates, factors)), dict[Pair, float]()
    free = len(rates) > 1, len(factors) > 1
    if first_at is not None and len(pairs) > KEPT:
        for _ in range(MOST_EXTENSIONS + 1):
            first |= zip(pairs, first_at(pairs), strict=True)
            best = min(sorted(first), key=lambda pair: first[pair])  # of equal ones the lowest
            grid = [*first, *_beyond(best, first, free, most)]
            pairs = [
                pair
                for pair in itertools.product(*(sorted(set(values)) for values in zip(*grid, strict=True)))
                if pair not in first
            ]
            if not pairs:
                break
        pairs = sorted(sorted(sorted(first), key=lambda pair: first[pair])[:KEPT])
    losses = {pair: np.array([loss]) for pair, loss in first.items()}
    every = dict[Pair, np.ndarray]()
    for _ in range(MOST_EXTENSIONS + 1):
        every |= zip(pairs, losses_at(pairs), strict=True)
        best = min(sorted(every), key=lambda pair: every[pair].mean())
        pairs = [pair for pair in _beyond(best, [*first, *every], free, most) if pair not in every]
        if not pairs:
            break
    losses |= every
    table = np.full((len(losses), len(every[best])), np.nan)
    for row, pair in enumerate(sorted(losses)):
        table[row, : len(losses[pair])] = losses[pair]
    return Tried(sorted(losses), table)


def _beyond(best: Pair, tried: Collection[Pair], free: tuple[bool, bool], most: float) -> list[Pair]:
    """Return the neighbours of the best pair beyond the edges at which it is.

    free: which of both numbers may be changed. most: higher rates are below it.
    """
    found = []
    for axis, limit in ((0, most), (1, np.inf)):
        values = [pair[axis] for pair in tried]
        for end, factor in ((min(values), 0.5), (max(values), 2.0)):
            if free[axis] and best[axis] == end and (factor < 1 or end * factor < limit):
                found.append((best[0] * factor, best[1]) if axis == 0 else (best[0], best[1] * factor))
    return found


def tuning_rows(tried: Mapping[Any, Tried]) -> dict[str, dict[str, Any]]:
    """Return the learning rates and factors that were tried, by class of models, as in results.json.

    A pair has the losses of the seeds with which it was trained, infinite if a model diverged.
    """
    return {
        kind: {
            "rates": each.rates.tolist(),
            "factors": each.factors.tolist(),
            "losses": [losses[~np.isnan(losses)].tolist() for losses in each.losses],
            "best": each.rate,
            "best_factor": each.pair[1],
            "at_edge": each.at_edge,
        }
        for kind, each in tried.items()
    }


def rate_lines(tried: Mapping[Any, Tried], unit: str = "nats") -> list[str]:
    """Return a line for the terminal about the rate, and the factor if there are several, that each class has chosen."""
    lines = []
    for kind, each in tried.items():
        factor = f", times {each.pair[1]:g} for the tables" if len(set(each.factors)) > 1 else ""
        edge = ", at the edge of those tried" if each.at_edge else ""
        mean = each.losses[each.best].mean()
        lines.append(f"learning rate of {kind} models: {each.rate:g}{factor}{edge}, mean loss {mean:.4f} {unit}")
    return lines
