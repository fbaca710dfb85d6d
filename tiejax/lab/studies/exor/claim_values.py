"""Quantities compared by the claims about EXor: distances of pairs by table, and exact risks, one value per seed."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tiejax.geometry.distances import area_under_log, log_roughness
from tiejax.lab.studies.exor.symbols import Symbols
from tiejax.lab.studies.exor.trajectories import TABLES, Trajectories, output_gap, solved
from tiejax.statistics.arms import ARMS

ByPair = Mapping[str, np.ndarray]
UNTIED, TIED = (ARMS.index(name) for name in ("untied", "tied"))


@dataclasses.dataclass(frozen=True)
class TableValues:
    """Distances of each pair in one table, `[seed]` by pair.

    Pairs are `zero`, `one` and `even_odd`; `holding` and `violating` are aliases for the pair for which DH holds and the pair
    for which it fails, if they exist.
    distance: final relative distance. log_area: mean ln(relative distance) over training, lower if the pair converges sooner.
    roughness: mean |change of ln(distance)| from record to record over the last two cycles.
    """

    distance: ByPair
    log_area: ByPair
    roughness: ByPair


@dataclasses.dataclass(frozen=True)
class RiskValues:
    """Exact, final risks on the training split, `[arm, seed]`.

    gap: output distance of the violating pair, |e1 - e2| |h|, less its bound; None if no pair violates DH.
    """

    cross_entropy: np.ndarray
    solved: np.ndarray
    gap: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Values:
    """Quantities compared by the claims. risk: None if no exact risk was computed."""

    untied_input: TableValues
    untied_output: TableValues
    tied: TableValues
    risk: RiskValues | None

    def costs(self) -> np.ndarray:
        """Return the cost of tying: cross-entropy, tied - untied."""
        assert self.risk is not None
        return self.risk.cross_entropy[TIED] - self.risk.cross_entropy[UNTIED]

    def solves(self) -> np.ndarray:
        """Return the difference in solving the task, tied - untied, with solved as 1 and unsolved as 0."""
        assert self.risk is not None
        return self.risk.solved[TIED].astype(float) - self.risk.solved[UNTIED].astype(float)

    def gap_of_solved(self, arm: int) -> np.ndarray:
        """Return an arm's gaps for the seeds in which it solved the task."""
        assert self.risk is not None
        assert self.risk.gap is not None
        return np.asarray(self.risk.gap[arm][self.risk.solved[arm]])


def values_of(runs: Trajectories, symbols: Symbols, bayes_cross_entropy: float, cycle: int) -> Values:
    """Return the quantities compared by the claims. cycle: steps per learning-rate cycle."""
    late = runs.steps >= max(int(runs.steps[-1]) - 2 * cycle, 0)
    # name -> pair: every pair by its own name, and the aliases `holding` and `violating`.
    names = {pair: pair for pair in runs.relative["input"]}
    names |= {name: pair for name in ("holding", "violating") if (pair := getattr(symbols, name)) is not None}

    def values(table: str, arm: int) -> TableValues:
        relative, distance = runs.relative[table], runs.distance[table]
        return TableValues(
            distance={name: runs.final(relative[pair])[arm] for name, pair in names.items()},
            log_area={name: area_under_log(relative[pair], runs.steps)[arm] for name, pair in names.items()},
            roughness={name: log_roughness(distance[pair][..., late])[arm] for name, pair in names.items()},
        )

    untied = {table: values(table, UNTIED) for table in TABLES}
    return Values(untied["input"], untied["output"], values("input", TIED), _risk_values(runs, symbols, bayes_cross_entropy))


def _risk_values(runs: Trajectories, symbols: Symbols, bayes_cross_entropy: float) -> RiskValues | None:
    is_solved = solved(runs, bayes_cross_entropy)
    if is_solved is None:
        return None
    cross_entropy = runs.final(runs.exact["cross_entropy"], exact=True)[..., 0]
    over_bound = None
    if symbols.violating:
        bound, gap = output_gap(runs, symbols)
        over_bound = gap - bound
    return RiskValues(cross_entropy, is_solved, over_bound)
