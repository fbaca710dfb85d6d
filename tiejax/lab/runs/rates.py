"""The choice of a learning rate, and of a factor for that of the tables, among several, on seeds that are not reported.

With many pairs of a rate and a factor, *successive halving* keeps the choice affordable: all pairs are screened by short runs
of one seed, and the best few are trained in full with several seeds. Short runs can prefer other pairs than full ones, so full
runs go on until the best pair is better than each of its neighbours in the grid.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Pair = tuple[float, float]  # a learning rate, and the factor of the tables'
MOST_EXTENSIONS = 3  # of the tried rates and factors, in screening and in full
KEPT = 4  # pairs that are trained in full after screening
SHORT = 3  # the runs that screen have this part of the steps


class Tried(NamedTuple):
    """Learning rates and factors that were tried, in ascending order.

    Attributes:
        pairs: (learning rate, factor of the tables') of each.
        losses: their final losses `[pair, seed]`, infinite if a model diverged, NaN of pairs that were only screened.
        screened: their losses after a short run of one seed, `[pair]`, NaN of pairs that were not screened.
        records: of the models with the best pair, as `FIELD`, `[seed, record, ...]`.
    """

    pairs: Sequence[Pair]
    losses: np.ndarray
    screened: np.ndarray
    records: Mapping[str, np.ndarray] = {}

    @property
    def best(self) -> int:
        """The number of the pair with the lowest mean loss in full."""
        return int(np.nanargmin(self.losses.mean(axis=1)))

    @property
    def pair(self) -> Pair:
        """The pair with the lowest mean loss in full."""
        return self.pairs[self.best]

    @property
    def rate(self) -> float:
        """The learning rate with the lowest mean loss in full."""
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


def short_of(steps: int) -> int:
    """Return the steps of the runs that screen; steps: those of full runs."""
    return max(1, steps // SHORT)


def choose_rates(
    rates: Sequence[float],
    losses_at: Callable[[Sequence[Pair]], np.ndarray],
    factors: Sequence[float] = (1.0,),
    screen: Callable[[Sequence[Pair]], np.ndarray] | None = None,
) -> Tried:
    """Try all pairs of learning rates and factors, and further ones as long as the best is at an edge, at most three times.

    With `screen`, more than four pairs are first screened, and a grid whose best pair is at an edge grows by half the lowest or
    twice the highest value; only the best four are then trained in full, and the neighbours of the best of those trained in
    full (the next lower and higher rate with its factor, the next lower and higher factor with its rate) until all are.

    Args:
        rates: learning rates, ascending; of a single one no other is tried.
        losses_at: pairs -> final losses `[pair, seed]`.
        factors: factors of the tables' learning rate, likewise.
        screen: pairs -> losses after short runs `[pair]`.
    """
    pairs, short = list(itertools.product(rates, factors)), dict[Pair, float]()
    free = len(rates) > 1, len(factors) > 1
    if screen is not None and len(pairs) > KEPT:
        for _ in range(MOST_EXTENSIONS + 1):
            short |= zip(pairs, screen(pairs), strict=True)
            best = min(sorted(short), key=lambda pair: short[pair])  # of equal ones the lowest
            grid = [*short, *_beyond(best, short, free)]
            pairs = [
                pair
                for pair in itertools.product(*(sorted(set(values)) for values in zip(*grid, strict=True)))
                if pair not in short
            ]
            if not pairs:
                break
        pairs = sorted(sorted(sorted(short), key=lambda pair: short[pair])[:KEPT])
    full, extensions = dict[Pair, np.ndarray](), 0
    while pairs:
        full |= zip(pairs, losses_at(pairs), strict=True)
        best = min(sorted(full), key=lambda pair: full[pair].mean())
        grid = [*short, *full]
        beyond = _beyond(best, grid, free) if extensions < MOST_EXTENSIONS else []
        pairs = sorted({*beyond, *_adjacent(best, grid)} - full.keys())
        extensions += any(pair in pairs for pair in beyond)
    missing = np.full_like(full[best], np.nan)
    every = sorted({*short, *full})
    return Tried(
        every, np.array([full.get(pair, missing) for pair in every]), np.array([short.get(pair, np.nan) for pair in every])
    )


def _adjacent(best: Pair, tried: Collection[Pair]) -> list[Pair]:
    """Return the pairs that have the next lower or higher of the rates tried, or of the factors, and share the other number."""
    found = []
    for axis in (0, 1):
        values = sorted({pair[axis] for pair in tried})
        place = values.index(best[axis])
        for value in (*values[max(place - 1, 0) : place], *values[place + 1 : place + 2]):
            found.append((value, best[1]) if axis == 0 else (best[0], value))
    return found


def _beyond(best: Pair, tried: Collection[Pair], free: tuple[bool, bool]) -> list[Pair]:
    """Return the neighbours of the best pair beyond the edges at which it is. free: which of both numbers may be changed."""
    found = []
    for axis, limit in ((0, 1.0), (1, np.inf)):
        values = [pair[axis] for pair in tried]
        for end, factor in ((min(values), 0.5), (max(values), 2.0)):
            if free[axis] and best[axis] == end and end * factor < limit:
                found.append((best[0] * factor, best[1]) if axis == 0 else (best[0], best[1] * factor))
    return found


def tuning_rows(tried: Mapping[Any, Tried]) -> dict[str, dict[str, Any]]:
    """Return the learning rates and factors that were tried, by class of models, as in results.json."""
    return {
        kind: {
            "rates": each.rates.tolist(),
            "factors": each.factors.tolist(),
            "losses": each.losses.tolist(),
            "screened": each.screened.tolist(),
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
