"""Quantities compared by the claims about EXor, one value per seed: distances of pairs by table, losses and outcomes by arm."""

import dataclasses
import functools

import numpy as np

from tiejax.geometry.distances import fluctuation, log_distance
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.exor.trajectories import Events, Trajectories, first, solves
from tiejax.statistics.arms import ARMS, replace_diverged

UNTIED, TIED = (ARMS.index(name) for name in ("untied", "tied"))
# Name of a table -> its place in a model, and the arm.
TABLES = {"untied input": ("input", UNTIED), "untied output": ("output", UNTIED), "tied": ("input", TIED)}


@dataclasses.dataclass(frozen=True)
class Setup:
    """What the analysis of a run must know of its task and its models.

    bayes_cross_entropy: of the training split. cycle: steps per learning-rate cycle. output_bias: whether the logits have a
    bias, so that the gap of a pair has no bound. asked_only: whether only symbols that are ever asked for are outcomes, so that
    even and odd have no output embeddings that are trained.
    """

    task: EXor
    bayes_cross_entropy: float
    cycle: int
    output_bias: bool = False
    asked_only: bool = False


@dataclasses.dataclass(frozen=True)
class Values:
    """Quantities compared by the claims. diverged: whether each member did, `[arm, seed]`.

    Pairs are `zero`, `one` and `even_odd`. Distances of a pair in one of `TABLES` are `[seed]`, NaN for diverged members. Risks
    are exact ones on the training split, `[arm, seed]`; a diverged member has the worst value and is not solved.
    """

    runs: Trajectories
    setup: Setup
    diverged: np.ndarray

    @property
    def pairs(self) -> set[str]:
        """The pairs that the task has."""
        return set(self.runs.relative["input"])

    def distance(self, table: str, pair: str) -> np.ndarray:
        """Return the final relative distances of a pair in a table."""
        place, arm = TABLES[table]
        return np.where(self.diverged[arm], np.nan, self.runs.final(self.runs.relative[place][pair])[arm])

    def passage(self, table: str, pair: str, threshold: float) -> Events:
        """Return when the relative distance is first below a threshold; diverged members count as never near."""
        place, arm = TABLES[table]
        found = first(self.runs.steps, self.runs.relative[place][pair][arm] < threshold)
        near = found.happened & ~self.diverged[arm]
        return Events(near, np.where(near, found.time, self.runs.steps[-1]))

    @functools.cached_property
    def regular(self) -> tuple[np.ndarray, int] | None:
        """The records whose fluctuation is measured, see `regular_records`."""
        return regular_records(self.runs.steps, self.setup.cycle)

    def fluctuation(self, scale: str, table: str, pair: str) -> np.ndarray:
        """Return how much a distance changes from record to record beyond what recurs with the cycle, over the last two cycles.

        The Euclidean distance (scale `linear`) or its logarithm (`log`); see `geometry.distances.fluctuation`.
        """
        assert self.regular is not None
        (place, arm), (records, period) = TABLES[table], self.regular
        late = self.runs.distance[place][pair][arm][:, records]
        return np.where(self.diverged[arm], np.nan, fluctuation(log_distance(late) if scale == "log" else late, period))

    @property
    def exact(self) -> bool:
        """Whether exact risks, which everything below needs, were computed."""
        return "cross_entropy" in self.runs.exact

    @functools.cached_property
    def solved(self) -> Events:
        """Which members solved the task and when."""
        steps, losses = self.runs.exact_steps, self.runs.exact["cross_entropy"][..., 0]
        found = solves(steps, losses, self.setup.bayes_cross_entropy, self.setup.cycle)
        return Events(found.happened & ~self.diverged, np.where(self.diverged, steps[-1], found.time))

    @functools.cached_property
    def cross_entropy(self) -> np.ndarray:
        """The final cross-entropy."""
        return replace_diverged(self.runs.final(self.runs.exact["cross_entropy"], exact=True)[..., 0], self.diverged, "high")

    def cost(self) -> np.ndarray:
        """Return the cost of tying: cross-entropy, tied - untied."""
        return np.asarray(self.cross_entropy[TIED] - self.cross_entropy[UNTIED])

    def gap(self, pair: str) -> np.ndarray:
        """Return the final value of the smallest |e1 - e2| |h| over contexts, `[arm, seed]`.

        An optimal model has h . (e1 - e2) = ln(p1 / p2) in every context in which the pair's bit is masked, hence
        |e1 - e2| |h| >= |ln(p1 / p2)|. With more than two spellings, the likeliest and the least likely are compared.
        """
        return self.runs.final(self.runs.exact[f"gap_{pair}"], exact=True)


def regular_records(steps: np.ndarray, cycle: int) -> tuple[np.ndarray, int] | None:
    """Return the places of the records of the last two cycles, evenly spaced, and the number of records per cycle.

    None if the spacing of the records does not divide the cycle, or if they cover less than two cycles.
    """
    spacing = int(steps[1] - steps[0]) if len(steps) > 1 else 0
    if not spacing or cycle % spacing:
        return None
    places, period = np.flatnonzero(steps % spacing == 0), cycle // spacing
    return (places[-(2 * period + 1) :], period) if len(places) > 2 * period else None
