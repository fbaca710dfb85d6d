"""The claims of Bertolotti and Cazzola, ICML 2024, about EXor as tests over seeds."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tiejax.lab.studies.exor.claim_values import TIED, UNTIED, Values, values_of
from tiejax.lab.studies.exor.symbols import Symbols
from tiejax.lab.studies.exor.trajectories import SOLVED_WITHIN, Trajectories
from tiejax.statistics.claims import Claim


@dataclasses.dataclass(frozen=True)
class Statement:
    """A claim in words, with the paired differences that test it and the sign they have if it is true.

    `{holding}`, `{violating}` and `{bound}` are replaced by the bits of those pairs and by the bound of the gap.
    needs: the pairs that the task must have for the claim to apply, and `risk` if it needs exact risks.
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
        "Tied table: the {violating} pair is farther apart than the {holding} pair.",
        "relative distance, {violating} pair - {holding} pair",
        lambda run: run.tied.distance["violating"] - run.tied.distance["holding"],
        sign=1,
        needs=("holding", "violating"),
    ),
    Statement(
        "tied-conflict/untied-input",
        "The {violating} pair is farther apart in the tied table than in the untied input table.",
        "relative distance, tied - untied input",
        lambda run: run.tied.distance["violating"] - run.untied_input.distance["violating"],
        sign=1,
        needs=("violating",),
    ),
    Statement(
        "tied-faster/input",
        "The {holding} pair converges sooner in the tied table than in the untied input table.",
        "mean ln relative distance over training, tied - untied",
        lambda run: run.tied.log_area["holding"] - run.untied_input.log_area["holding"],
        sign=-1,
        needs=("holding",),
    ),
    Statement(
        "tied-faster/output",
        "The {holding} pair converges sooner in the tied table than in the untied output table.",
        "mean ln relative distance over training, tied - untied",
        lambda run: run.tied.log_area["holding"] - run.untied_output.log_area["holding"],
        sign=-1,
        needs=("holding",),
    ),
    Statement(
        "tied-unstable/input",
        "The {violating} pair's distance changes more from record to record in the tied table than in the untied input table.",
        "mean |change of ln distance| over the last two cycles, tied - untied",
        lambda run: run.tied.roughness["violating"] - run.untied_input.roughness["violating"],
        sign=1,
        needs=("violating",),
    ),
    Statement(
        "tied-unstable/output",
        "The {violating} pair's distance changes more from record to record in the tied table than in the untied output table.",
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
        "Even and odd are farther apart in the tied table than in the untied output table.",
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
        "The output distance of the {violating} pair in solved untied models is at least {bound:.3f}/|h|.",
        "smallest |e1 - e2| |h| over contexts - {bound:.3f}",
        lambda run: run.gap_of_solved(UNTIED),
        sign=1,
        needs=("violating", "risk"),
    ),
    Statement(
        "output-gap/tied",
        "The output distance of the {violating} pair in solved tied models is at least {bound:.3f}/|h|.",
        "smallest |e1 - e2| |h| over contexts - {bound:.3f}",
        lambda run: run.gap_of_solved(TIED),
        sign=1,
        needs=("violating", "risk"),
    ),
)


def claims(runs: Trajectories, symbols: Symbols, bayes_cross_entropy: float, cycle: int) -> list[Claim]:
    """Return the paper's claims that apply to the task, with their paired differences over seeds.

    Distances are relative, final values are means over the last whole cycle, and risks are exact on the training split.
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
