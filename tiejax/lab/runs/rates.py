"""The choice of a learning rate among several, on seeds that are not reported."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Tried(NamedTuple):
    """Learning rates that were tried: ascending rates, and final losses `[rate, seed]`, infinite if a model diverged.

    records: of the models with the best rate, as `FIELD`, `[seed, record, ...]`.
    """

    rates: np.ndarray
    losses: np.ndarray
    records: Mapping[str, np.ndarray] = {}

    @property
    def best(self) -> int:
        """The number of the rate with the lowest mean loss."""
        return int(np.argmin(self.losses.mean(axis=1)))

    @property
    def rate(self) -> float:
        """The rate with the lowest mean loss."""
        return float(self.rates[self.best])

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the lowest or the highest that was tried."""
        return self.best in (0, len(self.rates) - 1)


MOST_EXTENSIONS = 3  # of the tried rates


def choose_rate(rates: Sequence[float], losses_at: Callable[[Sequence[float]], np.ndarray], below: float = 1.0) -> Tried:
    """Try learning rates, and half the lowest or twice the highest as long as it is the best one, at most three times.

    losses_at: rates -> final losses `[rate, seed]`. below: the limit of rates that are added.
    """
    found = dict(zip(rates, losses_at(rates), strict=True))
    for extension in range(MOST_EXTENSIONS + 1):
        tried = Tried(np.array(sorted(found)), np.array([found[rate] for rate in sorted(found)]))
        rate = float(tried.rates[0] / 2 if tried.best == 0 else tried.rates[-1] * 2)
        if not tried.at_edge or extension == MOST_EXTENSIONS or rate >= below:
            return tried
        found[rate] = losses_at([rate])[0]
    raise AssertionError


def tuning_rows(tried: Mapping[Any, Tried]) -> dict[str, dict[str, Any]]:
    """Return the learning rates that were tried, by class of models, as in results.json."""
    return {
        kind: {
            "rates": each.rates.tolist(),
            "losses": each.losses.tolist(),
            "best": each.rate,
            "at_edge": each.at_edge,
        }
        for kind, each in tried.items()
    }


def rate_lines(tried: Mapping[Any, Tried], unit: str = "nats", what: str = "learning rate") -> list[str]:
    """Return a line for the terminal about the rate that each class of models has chosen."""
    return [
        f"{what} of {kind} models: {each.rate:g}{', the last that was tried' if each.at_edge else ''}, mean "
        f"loss {each.losses[each.best].mean():.4f} {unit}"
        for kind, each in tried.items()
    ]


def best_rates(tried: Mapping[T, Tried]) -> dict[T, float]:
    """Return the rate that each class of models has chosen."""
    return {kind: each.rate for kind, each in tried.items()}
