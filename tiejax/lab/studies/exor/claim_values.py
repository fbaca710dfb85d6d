"""Quantities compared by the claims about EXor, one value per seed: distances of pairs by table, losses and outcomes by arm."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from tiejax.geometry.distances import fluctuation, log_distance
from tiejax.lab.studies.exor.outcomes import THRESHOLDS, Events, first_passage, solves
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.exor.trajectories import TABLES, Trajectories, output_gap
from tiejax.statistics.arms import ARMS, replace_diverged

ByPair = Mapping[str, np.ndarray]
UNTIED, TIED = (ARMS.index(name) for name in ("untied", "tied"))


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TableValues:
    """Distances of each pair in one table, `[seed]` by pair; NaN for diverged members, except times.

    Pairs are `zero`, `one` and `even_odd`; `holding` and `violating` are aliases for the pair for which DH holds and the pair
    for which it fails, if they exist.
    distance: final relative distance. passage: by threshold, the step of the first record with a smaller relative distance.
    linear, log: how much the Euclidean distance, and its logarithm, change from record to record beyond what recurs with the
    cycle (see `fluctuation`), over the last two cycles; None if the records do not divide a cycle, or cover less than two.
    """

    distance: ByPair
    passage: Mapping[float, ByPair]
    linear: ByPair | None
    log: ByPair | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RiskValues:
    """Exact risks on the training split, `[arm, seed]`; a diverged member has the worst value and is not solved.

    cross_entropy: final. gap: output distance of the violating pair, |e1 - e2| |h|, less its bound; None if there is no bound.
    """

    cross_entropy: np.ndarray
    solved: np.ndarray
    solve_time: np.ndarray
    gap: np.ndarray | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Values:
    """Quantities compared by the claims. risk: None if no exact risk was computed."""

    untied_input: TableValues
    untied_output: TableValues
    tied: TableValues
    risk: RiskValues | None

    @property
    def of_risk(self) -> RiskValues:
        """The exact risks of a run that has them."""
        assert self.risk is not None
        return self.risk

    def cost(self) -> np.ndarray:
        """Return the cost of tying: cross-entropy, tied - untied."""
        return np.asarray(self.of_risk.cross_entropy[TIED] - self.of_risk.cross_entropy[UNTIED])

    def gap(self, arm: int) -> np.ndarray:
        """Return the gaps of an arm, less their bound."""
        assert self.of_risk.gap is not None
        return np.asarray(self.of_risk.gap[arm])

    def of_seeds(self, chosen: np.ndarray) -> "Values":
        """Return the values of chosen seeds, a boolean mask."""
        return jax.tree.map(lambda values: values[..., chosen], self)


def values_of(runs: Trajectories, setup: Setup, diverged: np.ndarray) -> Values:
    """Return the quantities compared by the claims. diverged: whether each member did, `[arm, seed]`."""
    untied = {table: _table_values(runs, setup, diverged, table, UNTIED) for table in TABLES}
    tied = _table_values(runs, setup, diverged, "input", TIED)
    return Values(untied["input"], untied["output"], tied, _risk_values(runs, setup, diverged))


def _table_values(runs: Trajectories, setup: Setup, diverged: np.ndarray, table: str, arm: int) -> TableValues:
    relative, distance = runs.relative[table], runs.distance[table]
    # name -> pair: every pair by its own name, and the aliases `holding` and `violating`.
    names = {pair: pair for pair in relative}
    names |= {name: pair for name in ("holding", "violating") if (pair := getattr(setup.task, name)) is not None}
    gone = diverged[arm]
    regular = regular_records(runs.steps, setup.cycle)

    def fluctuations(log: bool) -> ByPair | None:
        if regular is None:
            return None
        records, period = regular
        found = {}
        for pair, values in distance.items():
            late = values[arm][:, records]
            found[pair] = np.where(gone, np.nan, fluctuation(log_distance(late) if log else late, period))
        return {name: found[pair] for name, pair in names.items()}

    def passages(threshold: float) -> ByPair:
        times = {pair: first_passage(runs.steps, values[arm], threshold).time for pair, values in relative.items()}
        return {name: np.where(gone, runs.steps[-1], times[pair]) for name, pair in names.items()}

    return TableValues(
        distance={name: np.where(gone, np.nan, runs.final(relative[pair])[arm]) for name, pair in names.items()},
        passage={threshold: passages(threshold) for threshold in THRESHOLDS},
        linear=fluctuations(log=False),
        log=fluctuations(log=True),
    )


def regular_records(steps: np.ndarray, cycle: int) -> tuple[np.ndarray, int] | None:
    """Return the places of the records of the last two cycles, evenly spaced, and the number of records per cycle.

    None if the spacing of the records does not divide the cycle, or if they cover less than two cycles.
    """
    spacing = int(steps[1] - steps[0]) if len(steps) > 1 else 0
    if not spacing or cycle % spacing:
        return None
    places, period = np.flatnonzero(steps % spacing == 0), cycle // spacing
    return (places[-(2 * period + 1) :], period) if len(places) > 2 * period else None


def outcome(runs: Trajectories, setup: Setup, diverged: np.ndarray) -> Events | None:
    """Return which members solved the task and when, `[arm, seed]`; None without exact risk. Diverged members did not."""
    if "cross_entropy" not in runs.exact:
        return None
    losses = runs.exact["cross_entropy"][..., 0]
    found = solves(runs.exact_steps, losses, setup.bayes_cross_entropy, setup.cycle)
    return Events(found.happened & ~diverged, np.where(diverged, runs.exact_steps[-1], found.time))


def _risk_values(runs: Trajectories, setup: Setup, diverged: np.ndarray) -> RiskValues | None:
    solved = outcome(runs, setup, diverged)
    if solved is None:
        return None
    final = runs.final(runs.exact["cross_entropy"], exact=True)[..., 0]
    over_bound = None
    if setup.task.violating and not setup.output_bias:
        bound, gap = output_gap(runs, setup.task)
        over_bound = gap - bound
    return RiskValues(replace_diverged(final, diverged, "high"), solved.happened, solved.time, over_bound)
