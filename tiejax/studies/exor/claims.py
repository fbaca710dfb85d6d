"""The claims of Bertolotti and Cazzola, ICML 2024, about EXor, as tests over seeds: `CLAIMS` has them all."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from tiejax.geometry.distances import area_under_log, log_roughness
from tiejax.statistics.arms import ARMS
from tiejax.statistics.claims import Claim
from tiejax.studies.exor.symbols import Symbols
from tiejax.studies.exor.trajectories import SOLVED_WITHIN, TABLES, Trajectories, output_gap, solved

ByPair = Mapping[str, np.ndarray]
UNTIED, TIED = (ARMS.index(name) for name in ("untied", "tied"))


@dataclasses.dataclass(frozen=True)
class TableValues:
    """What a table did with each pair, `[seed]` by pair.

    Pairs are `zero`, `one` and `even_odd`; where there are such, `holding` names again the pair for which DH holds, and
    `violating` the one for which it fails.
    distance: final, relative. log_area: mean ln(relative distance) over training, lower where the pair converges sooner.
    roughness: mean |change of ln(distance)| from record to record of the last two cycles.
    """

    distance: ByPair
    log_area: ByPair
    roughness: ByPair


@dataclasses.dataclass(frozen=True)
class RiskValues:
    """Exact, final risks on the training split, `[arm, seed]`.

    gap: how far the violating pair is apart as outputs, over its bound; None where no pair violates DH.
    """

    cross_entropy: np.ndarray
    solved: np.ndarray
    gap: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Values:
    """What the claims compare. risk: None where no exact risk was computed."""

    untied_input: TableValues
    untied_output: TableValues
    tied: TableValues
    risk: RiskValues | None

    def costs(self) -> np.ndarray:
        """Return what tying costs: cross-entropy, tied - untied."""
        assert self.risk is not None
        return self.risk.cross_entropy[TIED] - self.risk.cross_entropy[UNTIED]

    def solves(self) -> np.ndarray:
        """Return who solved the task, tied - untied: -1, 0 or 1."""
        assert self.risk is not None
        return self.risk.solved[TIED].astype(float) - self.risk.solved[UNTIED].astype(float)

    def gap_of_solved(self, arm: int) -> np.ndarray:
        """Return the gap of an arm's seeds that solved the task."""
        assert self.risk is not None
        assert self.risk.gap is not None
        return np.asarray(self.risk.gap[arm][self.risk.solved[arm]])


@dataclasses.dataclass(frozen=True)
class Statement:
    """A claim in words, and the differences over seeds that speak for it (`sign` 1: if positive) or against it.

    `{holding}`, `{violating}` and `{bound}` are replaced by the bits of those pairs and by the bound of the gap.
    needs: what the task must have for the claim to apply: one of the pairs, or `risk`.
    """

    id: str
    words: str
    statistic: str
    differences: Callable[[Values], np.ndarray]
    sign: int
    needs: tuple[str, ...] = ()
    binary: bool = False


CLAIMS = (
    Statement(
        "input-semantic/zero",
        "Untied input table: the zero pair is nearer than symbols of different meaning.",
        "relative distance - 1",
        lambda run: run.untied_input.distance["zero"] - 1,
        sign=-1,
        needs=("zero",),
    ),
    Statement(
        "input-semantic/one",
        "Untied input table: the one pair is nearer than symbols of different meaning.",
        "relative distance - 1",
        lambda run: run.untied_input.distance["one"] - 1,
        sign=-1,
        needs=("one",),
    ),
    Statement(
        "output-conditional",
        "Untied output table: the {violating} pair is farther apart than the {holding} pair.",
        "relative distance, {violating} pair - {holding} pair",
        lambda run: run.untied_output.distance["violating"] - run.untied_output.distance["holding"],
        sign=1,
        needs=("holding", "violating"),
    ),
    Statement(
        "tied-conflict/{holding}-pair",
        "Tied: the {violating} pair is farther apart than the {holding} pair.",
        "relative distance, {violating} pair - {holding} pair",
        lambda run: run.tied.distance["violating"] - run.tied.distance["holding"],
        sign=1,
        needs=("holding", "violating"),
    ),
    Statement(
        "tied-conflict/untied-input",
        "The {violating} pair is farther apart tied than in the untied input table.",
        "relative distance, tied - untied input",
        lambda run: run.tied.distance["violating"] - run.untied_input.distance["violating"],
        sign=1,
        needs=("violating",),
    ),
    Statement(
        "tied-faster/input",
        "The {holding} pair converges sooner tied than in the untied input table.",
        "mean ln relative distance over training, tied - untied",
        lambda run: run.tied.log_area["holding"] - run.untied_input.log_area["holding"],
        sign=-1,
        needs=("holding",),
    ),
    Statement(
        "tied-faster/output",
        "The {holding} pair converges sooner tied than in the untied output table.",
        "mean ln relative distance over training, tied - untied",
        lambda run: run.tied.log_area["holding"] - run.untied_output.log_area["holding"],
        sign=-1,
        needs=("holding",),
    ),
    Statement(
        "tied-unstable/input",
        "The {violating} pair's distance moves more from record to record tied than in the untied input table.",
        "mean |change of ln distance| over the last two cycles, tied - untied",
        lambda run: run.tied.roughness["violating"] - run.untied_input.roughness["violating"],
        sign=1,
        needs=("violating",),
    ),
    Statement(
        "tied-unstable/output",
        "The {violating} pair's distance moves more from record to record tied than in the untied output table.",
        "mean |change of ln distance| over the last two cycles, tied - untied",
        lambda run: run.tied.roughness["violating"] - run.untied_output.roughness["violating"],
        sign=1,
        needs=("violating",),
    ),
    Statement(
        "output-reverse/output",
        "Untied output table: even and odd are nearer than symbols of different meaning.",
        "relative distance - 1",
        lambda run: run.untied_output.distance["even_odd"] - 1,
        sign=-1,
    ),
    Statement(
        "output-reverse/input",
        "Untied input table: even and odd are not nearer than symbols of different meaning.",
        "relative distance - 1",
        lambda run: run.untied_input.distance["even_odd"] - 1,
        sign=1,
    ),
    Statement(
        "output-reverse/tied",
        "Even and odd are held farther apart tied than in the untied output table.",
        "relative distance, tied - untied output",
        lambda run: run.tied.distance["even_odd"] - run.untied_output.distance["even_odd"],
        sign=1,
    ),
    Statement(
        "tying-costs",
        "Where DH fails, tying costs cross-entropy.",
        "exact cross-entropy (nats), tied - untied",
        Values.costs,
        sign=1,
        needs=("violating", "risk"),
    ),
    Statement(
        "solved",
        f"Fewer tied than untied models come within {SOLVED_WITHIN} nat of the Bayes cross-entropy.",
        "fraction solved, tied - untied (McNemar)",
        Values.solves,
        sign=-1,
        needs=("risk",),
        binary=True,
    ),
    Statement(
        "output-gap/untied",
        "Solved untied models keep the {violating} pair at least {bound:.3f}/|h| apart as outputs.",
        "smallest |e1 - e2| |h| over contexts - {bound:.3f}",
        lambda run: run.gap_of_solved(UNTIED),
        sign=1,
        needs=("violating", "risk"),
    ),
    Statement(
        "output-gap/tied",
        "Solved tied models keep the {violating} pair at least {bound:.3f}/|h| apart as outputs.",
        "smallest |e1 - e2| |h| over contexts - {bound:.3f}",
        lambda run: run.gap_of_solved(TIED),
        sign=1,
        needs=("violating", "risk"),
    ),
)


def claims(runs: Trajectories, symbols: Symbols, bayes_cross_entropy: float, cycle: int) -> list[Claim]:
    """Return the paper's claims that apply to the task, with their paired differences over seeds.

    Distances are relative, final values means over the last whole cycle, risks exact on the training split.
    """
    values = values_of(runs, symbols, bayes_cross_entropy, cycle)
    present = {*values.tied.distance, *(["risk"] if values.risk else [])}
    named = {
        "holding": symbols.holding,
        "violating": symbols.violating,
        "bound": symbols.imbalance(symbols.violating or "zero"),
    }
    return [
        Claim(
            statement.id.format(**named),
            statement.words.format(**named),
            statement.statistic.format(**named),
            statement.differences(values),
            statement.sign,
            statement.binary,
        )
        for statement in CLAIMS
        if present.issuperset(statement.needs)
    ]


def values_of(runs: Trajectories, symbols: Symbols, bayes_cross_entropy: float, cycle: int) -> Values:
    """Return what the claims compare."""
    late = runs.steps >= max(int(runs.steps[-1]) - 2 * cycle, 0)
    # name -> pair: every pair by its own name and, where DH says something of it, by that too.
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
