"""The claims about EXor as paired differences over seeds: those of Bertolotti and Cazzola, ICML 2024, and what tying costs.

They are fixed here before a run, with their margins: .05 nat of cross-entropy, 5 points of the share of solved models, .05 of
relative distance. A claim's id is `claim/part`, where the part names the table, arm, pair, scale or threshold.

The task decides which of them apply, and their sign: DH holds for a pair whose spellings are equally likely (`holding`) and
fails for the others (`violating`). Where no pair violates DH, tying is claimed to help: more tied models solve the task, and
sooner. A price of at most 0 is claimed as non-inferiority, `tying-free`, since only that can be supported if the price is
exactly 0. Where both pairs obey DH, `tying-costs` claims that a price remains nevertheless. Outcomes are registered if some
pair obeys DH, and are exploratory otherwise (no-dh). `output-gap` is exploratory, since an outcome selects its models.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tiejax.lab.studies.exor.claim_values import TIED, UNTIED, Values
from tiejax.lab.studies.exor.trajectories import SOLVED_WITHIN, THRESHOLDS
from tiejax.statistics.arms import ARMS, replace_undefined, undefined_replaced
from tiejax.statistics.claims import Claim, Family, Goal

NATS, SHARE, DISTANCE = 0.05, 0.05, 0.05  # margins


def claims(values: Values) -> list[Claim]:
    """Return the claims that apply to the task and the run, none if all members diverged.

    Distances are relative, final values are means over the last whole cycle, and risks are exact on the training split. In a
    comparison of distances a diverged member counts against the claim; losses and times of diverged members are the worst ones.
    """
    if values.diverged.all():
        return []
    about_pairs = [*_distances(values), *_passages(values), *_fluctuations(values), *_even_and_odd(values)]
    return [*about_pairs, *_costs(values), *_outcomes(values), *_gaps(values)] if values.exact else about_pairs


def _distances(values: Values) -> Iterator[Claim]:
    """Yield the claims about the final distances of the spellings of a bit."""
    holding, violating = values.setup.task.holding, values.setup.task.violating
    for bit in (bit for bit in ("zero", "one") if bit in values.pairs):
        yield _distance(
            f"input-semantic/{bit}",
            f"Untied input table: the {bit} pair is nearer than symbols of different meaning.",
            f"the relative distance of the {bit} pair in the untied input table (less 1)",
            values.distance("untied input", bit) - 1,
            sign=-1,
            one_arm=True,
        )
    if not violating:
        return
    if holding:
        for name, table in (("output-conditional", "untied output"), (f"tied-conflict/{holding}-pair", "tied")):
            yield _distance(
                name,
                f"{table.capitalize()} table: the {violating} pair is farther apart than the {holding} pair.",
                f"the relative distance in the {table} table ({violating} pair - {holding} pair)",
                values.distance(table, violating) - values.distance(table, holding),
                sign=1,
                one_arm=True,
            )
    yield _distance(
        "tied-conflict/untied-input",
        f"The {violating} pair is farther apart in the tied table than in the untied input table.",
        f"the relative distance of the {violating} pair (tied - untied input)",
        values.distance("tied", violating) - values.distance("untied input", violating),
        sign=1,
    )


def _distance(
    name: str,
    statement: str,
    estimand: str,
    differences: np.ndarray,
    sign: int,
    goal: Goal = "difference",
    one_arm: bool = False,
) -> Claim:
    about = {"goal": goal, "margin": DISTANCE, "one_arm": one_arm, **undefined_replaced(differences, sign)}
    return Claim(name, statement, estimand, sign=sign, **about)


def _passages(values: Values) -> Iterator[Claim]:
    """Yield the claims about when the pair for which DH holds first comes near."""
    pair = values.setup.task.holding
    if pair is None:
        return
    for table in ("input", "output"):
        for threshold in THRESHOLDS:
            tied, untied = (values.passage(name, pair, threshold) for name in ("tied", f"untied {table}"))
            yield Claim(
                f"first-passage/{threshold:g}/{table}",
                f"The {pair} pair comes within a relative distance of {threshold:g} sooner in the tied table than in the "
                f"untied {table} table.",
                f"the restricted mean time until the {pair} pair is nearer than {threshold:g} (tied - untied {table})",
                tied.time - untied.time,
                sign=-1,
                kind="time",
                unit="steps",
            )


def _fluctuations(values: Values) -> Iterator[Claim]:
    """Yield the claims about how much the pair that violates DH fluctuates, if two cycles of records are evenly spaced."""
    pair = values.setup.task.violating
    if pair is None or values.regular is None:
        return
    for scale, quantity in (("linear", "distance"), ("log", "ln distance")):
        tied = values.fluctuation(scale, "tied", pair)
        for table in ("input", "output"):
            yield Claim(
                f"tied-unstable/{scale}/{table}",
                f"The {pair} pair's {quantity} changes more from record to record in the tied table than in the untied {table} "
                "table, beyond what recurs with the learning-rate cycle.",
                f"the mean |change of {quantity}| of the {pair} pair between records without the cycle (tied - untied {table})",
                replace_undefined(tied - values.fluctuation(scale, f"untied {table}", pair), 1),
                sign=1,
            )


def _even_and_odd(values: Values) -> Iterator[Claim]:
    """Yield the claims about even and odd, whose output embeddings are trained only if they are outcomes of the model."""
    tied, untied_input, untied_output = (
        values.distance(table, "even_odd") for table in ("tied", "untied input", "untied output")
    )
    if not values.setup.asked_only:
        yield _distance(
            "output-reverse/output",
            "Untied output table: even and odd are nearer than symbols of different meaning.",
            "the relative distance of even and odd in the untied output table (less 1)",
            untied_output - 1,
            sign=-1,
            one_arm=True,
        )
    yield _distance(
        "output-reverse/input",
        f"Untied input table: even and odd are not nearer than symbols of different meaning, by {DISTANCE:g} or more.",
        "the relative distance of even and odd in the untied input table (less 1)",
        untied_input - 1,
        sign=1,
        goal="non-inferiority",
        one_arm=True,
    )
    if not values.setup.asked_only:
        yield _distance(
            "output-reverse/tied",
            "Even and odd are farther apart in the tied table than in the untied output table.",
            "the relative distance of even and odd (tied - untied output)",
            tied - untied_output,
            sign=1,
        )


def _costs(values: Values) -> Iterator[Claim]:
    """Yield the claims about the price of tying in cross-entropy."""
    task = values.setup.task
    about = "the exact cross-entropy (tied - untied)", values.cost()
    fields: dict[str, Any] = {"unit": "nats", "margin": NATS, "replaced": values.diverged.any(0)}
    costs = "Where DH fails for a pair, tying costs cross-entropy."
    if not task.violating:
        costs = "A price of tying remains although DH holds for both pairs of spellings."
    if task.violating or {"zero", "one"} <= values.pairs:
        yield Claim("tying-costs", costs, *about, sign=1, **fields)
    if task.holding and not task.violating:
        free = f"Where DH fails for no pair of spellings, tying costs less than {NATS:g} nat."
        yield Claim("tying-free", free, *about, sign=-1, goal="non-inferiority", **fields)


def _outcomes(values: Values) -> Iterator[Claim]:
    """Yield the claims about who solves the task, and when."""
    task, solved = values.setup.task, values.solved
    family: Family = "registered" if task.holding else "exploratory"
    if not (task.violating or task.holding):
        return
    more, longer, sign = "Where DH fails for a pair, fewer", "longer", 1  # the sign of the difference of times
    if not task.violating:
        more, longer, sign = "Where DH fails for no pair of spellings, more", "shorter", -1
    yield Claim.proportion(
        "solved",
        f"{more} tied than untied models come within {SOLVED_WITHIN} nat of the Bayes cross-entropy and stay there for a "
        "whole cycle.",
        "the share of models that solve the task (tied - untied)",
        solved.happened[TIED],
        solved.happened[UNTIED],
        sign=-sign,
        family=family,
        unit="",
        margin=SHARE,
    )
    yield Claim(
        "solve-time",
        f"The mean time until the task is solved, or until the end of the run, is {longer} for tied models.",
        f"the restricted mean time until the task is solved, cut at {int(values.runs.steps[-1]):,} (tied - untied)",
        solved.time[TIED] - solved.time[UNTIED],
        sign=sign,
        kind="time",
        family=family,
        unit="steps",
    )


def _gaps(values: Values) -> Iterator[Claim]:
    """Yield the claims about the output distance of the violating pair in solved models; a bias leaves no bound on it."""
    pair = values.setup.task.violating
    if pair is None or values.setup.output_bias:
        return
    for arm in (UNTIED, TIED):
        name, bound = ARMS[arm], values.setup.task.imbalance(pair)
        yield Claim(
            f"output-gap/{name}",
            f"In solved {name} models the output distance of the {pair} pair times |h| is above {bound:.3f} in the mean.",
            f"the mean over solved {name} models of the smallest |e1 - e2| |h| over contexts (less {bound:.3f})",
            (values.gap(pair)[arm] - bound)[values.solved.happened[arm]],
            sign=1,
            family="exploratory",
            one_arm=True,
        )
