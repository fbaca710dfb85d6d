"""The claims about EXor as paired differences over seeds: those of Bertolotti and Cazzola, ICML 2024, and what tying costs.

They are fixed here before a run, with their margins: .05 nat of cross-entropy, 5 points of the share of solved models, .05 of
relative distance. A claim's id is `claim/part`, where the part names the table, arm, pair, scale or threshold:

    input-semantic/BIT                   an untied input table draws the spellings of BIT together
    output-conditional                   an untied output table holds the violating pair farther apart than the holding one
    tied-conflict/HOLDING-pair           so does a tied table
    tied-conflict/untied-input           it holds the violating pair farther apart than an untied input table does
    first-passage/THRESHOLD/TABLE        the holding pair comes within THRESHOLD sooner tied than in the untied TABLE
    tied-unstable/SCALE/TABLE            the violating pair fluctuates more tied than in the untied TABLE
    output-reverse/TABLE                 the pair of even and odd: the other way in which DH fails
    tying-costs                          tying costs cross-entropy: where a pair violates DH, or where both pairs obey it
    tying-free                           tying costs less than the margin: where no pair violates DH
    solved, solve-time                   how many models solve the task, and when
    output-gap/ARM                       the output distance in solved models is above the theory's bound on average

The task decides which of them apply, and their sign: DH holds for a pair whose spellings are equally likely (`holding`) and
fails for the others (`violating`). Where no pair violates DH, tying is claimed to help: more tied models solve the task, and
sooner. A price of at most 0 is claimed as non-inferiority, `tying-free`, since only that can be supported if the price is
exactly 0. Where both pairs obey DH, `tying-costs` claims that a price remains nevertheless. Outcomes are registered if some
pair obeys DH, and are exploratory otherwise (no-dh), as are all claims among the seeds whose models both solved the task, which
an outcome selects. For the same reason `output-gap` is exploratory.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tiejax.lab.studies.exor.claim_values import TIED, UNTIED, Values
from tiejax.lab.studies.exor.trajectories import SOLVED_WITHIN, THRESHOLDS
from tiejax.statistics.arms import ARMS, replace_undefined
from tiejax.statistics.claims import Claim, Goal, Kind

NATS, SHARE, DISTANCE = 0.05, 0.05, 0.05  # margins


@dataclasses.dataclass(frozen=True)
class Statement:
    """A claim in words, with the paired differences that test it and the sign they have if it is true.

    `{holding}`, `{violating}`, `{bound}` and `{end}` are replaced by the bits of those pairs, by the bound of the gap and by
    the last step. needs: what the task and the run must have for the claim to apply (see `present`). among: the arm whose
    solved members it is about; as an outcome chooses them, the claim is exploratory. outcome: whether it is about who solves
    the task, and when. kind, goal, unit, margin, one_arm: as in `Claim`.
    """

    id: str
    words: str
    estimand: str
    differences: Callable[[Values], np.ndarray]
    sign: int
    needs: tuple[str, ...] = ()
    among: int | None = None
    outcome: bool = False
    kind: Kind = "mean"
    goal: Goal = "difference"
    unit: str = ""
    margin: float | None = None
    one_arm: bool = False


def _semantic(bit: str) -> Statement:
    return Statement(
        f"input-semantic/{bit}",
        f"Untied input table: the {bit} pair is nearer than symbols of different meaning.",
        f"the relative distance of the {bit} pair in the untied input table (less 1)",
        lambda run: run.distance("untied input", bit) - 1,
        sign=-1,
        needs=(bit,),
        margin=DISTANCE,
        one_arm=True,
    )


def _conflict(name: str, table: str) -> Statement:
    return Statement(
        name,
        f"{table.capitalize()} table: the {{violating}} pair is farther apart than the {{holding}} pair.",
        f"the relative distance in the {table} table ({{violating}} pair - {{holding}} pair)",
        lambda run: run.distance(table, "violating") - run.distance(table, "holding"),
        sign=1,
        needs=("holding", "violating"),
        margin=DISTANCE,
        one_arm=True,
    )


def _passage(threshold: float, table: str) -> Statement:
    return Statement(
        f"first-passage/{threshold:g}/{table}",
        f"The {{holding}} pair comes within a relative distance of {threshold:g} sooner in the tied table than in the untied "
        f"{table} table.",
        f"the restricted mean time until the {{holding}} pair is nearer than {threshold:g} (tied - untied {table})",
        lambda run: run.passage("tied", "holding", threshold).time - run.passage(f"untied {table}", "holding", threshold).time,
        sign=-1,
        needs=("holding",),
        kind="time",
        unit="steps",
    )


def _unstable(scale: str, table: str) -> Statement:
    quantity = {"linear": "distance", "log": "ln distance"}[scale]
    return Statement(
        f"tied-unstable/{scale}/{table}",
        f"The {{violating}} pair's {quantity} changes more from record to record in the tied table than in the untied {table} "
        "table, beyond what recurs with the learning-rate cycle.",
        f"the mean |change of {quantity}| of the {{violating}} pair between records without the cycle (tied - untied {table})",
        lambda run: run.fluctuation(scale, "tied", "violating") - run.fluctuation(scale, f"untied {table}", "violating"),
        sign=1,
        needs=("violating", "fluctuation"),
    )


def _outcomes(more: str, longer: str, sign: int, needs: tuple[str, ...]) -> list[Statement]:
    """Return the claims about who solves the task and when; sign: of the difference of times."""
    return [
        Statement(
            "solved",
            f"{more} tied than untied models come within {SOLVED_WITHIN} nat of the Bayes cross-entropy and stay there for a "
            "whole cycle.",
            "the share of models that solve the task (tied - untied)",
            lambda run: run.solved.happened[TIED].astype(float) - run.solved.happened[UNTIED],
            sign=-sign,
            needs=needs,
            outcome=True,
            kind="proportion",
            margin=SHARE,
        ),
        Statement(
            "solve-time",
            f"The mean time until the task is solved, or until the end of the run, is {longer} for tied models.",
            "the restricted mean time until the task is solved, cut at {end:,} (tied - untied)",
            lambda run: run.solved.time[TIED] - run.solved.time[UNTIED],
            sign=sign,
            needs=needs,
            outcome=True,
            kind="time",
            unit="steps",
        ),
    ]


def _costs(name: str, words: str, sign: int, needs: tuple[str, ...], goal: Goal = "difference") -> Statement:
    estimand = "the exact cross-entropy (tied - untied)"
    return Statement(name, words, estimand, Values.cost, sign, needs, goal=goal, unit="nats", margin=NATS)


def _gap(arm: int) -> Statement:
    name = ARMS[arm]
    return Statement(
        f"output-gap/{name}",
        f"In solved {name} models the output distance of the {{violating}} pair times |h| is above {{bound:.3f}} in the mean.",
        f"the mean over solved {name} models of the smallest |e1 - e2| |h| over contexts (less {{bound:.3f}})",
        lambda run: run.gap("violating")[arm] - run.setup.task.imbalance(run.pairs["violating"]),
        sign=1,
        needs=("violating", "bound"),
        among=arm,
        one_arm=True,
    )


STATEMENTS = (
    *(_semantic(bit) for bit in ("zero", "one")),
    _conflict("output-conditional", "untied output"),
    _conflict("tied-conflict/{holding}-pair", "tied"),
    Statement(
        "tied-conflict/untied-input",
        "The {violating} pair is farther apart in the tied table than in the untied input table.",
        "the relative distance of the {violating} pair (tied - untied input)",
        lambda run: run.distance("tied", "violating") - run.distance("untied input", "violating"),
        sign=1,
        needs=("violating",),
        margin=DISTANCE,
    ),
    *(_passage(threshold, table) for table in ("input", "output") for threshold in THRESHOLDS),
    *(_unstable(scale, table) for scale in ("linear", "log") for table in ("input", "output")),
    Statement(
        "output-reverse/output",
        "Untied output table: even and odd are nearer than symbols of different meaning.",
        "the relative distance of even and odd in the untied output table (less 1)",
        lambda run: run.distance("untied output", "even_odd") - 1,
        sign=-1,
        needs=("trained-even-odd",),
        margin=DISTANCE,
        one_arm=True,
    ),
    Statement(
        "output-reverse/input",
        f"Untied input table: even and odd are not nearer than symbols of different meaning, by {DISTANCE:g} or more.",
        "the relative distance of even and odd in the untied input table (less 1)",
        lambda run: run.distance("untied input", "even_odd") - 1,
        sign=1,
        goal="non-inferiority",
        margin=DISTANCE,
        one_arm=True,
    ),
    Statement(
        "output-reverse/tied",
        "Even and odd are farther apart in the tied table than in the untied output table.",
        "the relative distance of even and odd (tied - untied output)",
        lambda run: run.distance("tied", "even_odd") - run.distance("untied output", "even_odd"),
        sign=1,
        needs=("trained-even-odd",),
        margin=DISTANCE,
    ),
    _costs("tying-costs", "Where DH fails for a pair, tying costs cross-entropy.", 1, ("violating", "risk")),
    _costs("tying-costs", "A price of tying remains although DH holds for both pairs of spellings.", 1, ("both-hold", "risk")),
    _costs(
        "tying-free",
        f"Where DH fails for no pair of spellings, tying costs less than {NATS:g} nat.",
        -1,
        ("no-violating", "risk"),
        goal="non-inferiority",
    ),
    *_outcomes("Where DH fails for a pair, fewer", "longer", 1, ("violating", "risk")),
    *_outcomes("Where DH fails for no pair of spellings, more", "shorter", -1, ("no-violating", "risk")),
    *(_gap(arm) for arm in (UNTIED, TIED)),
)


def present(values: Values) -> set[str]:
    """Return what the task and the run have, as named by `Statement.needs`.

    Pairs (`zero`, `one`, `even_odd`), `holding` and `violating`; `no-violating`: there are pairs, and DH holds for all of them;
    `both-hold`: it holds for two; `risk`: exact risk; `bound`: a bound on the gap; `fluctuation`: at least two cycles of evenly
    spaced records; `trained-even-odd`: even and odd are outcomes of the model.
    """
    pairs = set(values.pairs)
    holds = "violating" not in pairs and "holding" in pairs
    facts = {
        "no-violating": holds,
        "both-hold": holds and {"zero", "one"} <= pairs,
        "risk": values.exact,
        "bound": values.exact and not values.setup.output_bias,
        "fluctuation": values.regular is not None,
        "trained-even-odd": not values.setup.asked_only,
    }
    return pairs | {name for name, found in facts.items() if found}


Tested = Sequence[tuple[Statement, np.ndarray]]


def tested(values: Values) -> Tested:
    """Return the statements that apply to the task and the run, with their paired differences over seeds.

    Distances are relative, final values are means over the last whole cycle, and risks are exact on the training split.
    """
    found = present(values)
    return [(statement, statement.differences(values)) for statement in STATEMENTS if found.issuperset(statement.needs)]


def claims(values: Values, applicable: Tested) -> list[Claim]:
    """Return the claims of the statements that apply.

    In a comparison of distances a diverged member counts against the claim; losses and times of diverged members are the worst
    ones.
    """
    every = np.ones(values.diverged.shape[1], bool)
    return [_claim(values, statement, differences, every) for statement, differences in applicable]


def _claim(values: Values, statement: Statement, differences: np.ndarray, chosen: np.ndarray) -> Claim:
    """Return the claim about the chosen seeds, a boolean mask."""
    task, solved = values.setup.task, values.solved.happened[:, chosen] if values.exact else None
    named = {
        "holding": task.holding,
        "violating": task.violating,
        "bound": task.imbalance(task.violating or "zero"),
        "end": int(values.runs.steps[-1]),
    }
    differences = replace_undefined(differences[chosen], statement.sign)
    outcomes = None
    if solved is not None and statement.among is not None:
        differences = differences[solved[statement.among]]
    if solved is not None and statement.kind == "proportion":
        outcomes = solved[TIED], solved[UNTIED]
    return Claim(
        statement.id.format(**named),
        statement.words.format(**named),
        statement.estimand.format(**named),
        differences,
        statement.sign,
        statement.kind,
        statement.goal,
        "exploratory" if statement.among is not None or (statement.outcome and task.holding is None) else "registered",
        statement.unit,
        statement.margin,
        outcomes,
        statement.one_arm,
    )


def exploratory(among: Iterable[Claim]) -> list[Claim]:
    """Return the claims as exploratory ones."""
    return [dataclasses.replace(claim, family="exploratory") for claim in among]


def claims_among_solved(values: Values, applicable: Tested) -> list[Claim]:
    """Return the claims about the seeds whose models both solved the task, except those about solving, all exploratory."""
    both = np.asarray(values.solved.happened.all(0))
    return exploratory(_claim(values, *each, both) for each in applicable if not each[0].outcome)
