r"""Dose and response: tied and untied models as a function of the strength of the conflict, |ln(p / (1 - p))|.

If two spellings of a bit have probabilities p and 1 - p, an optimal model satisfies h . (e1 - e2) = ln(p / (1 - p)) in every
context, hence |e1 - e2| |h| >= |ln(p / (1 - p))|: the theory's one quantitative prediction. It says nothing about the slope of
the gap over its bound, nor about models that are not optimal: only gaps of solved models are compared with it.
Source of the theory: Bertolotti and Cazzola, ICML 2024, which tests the single point p = .9.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.lab.studies.exor.analysis import analyse
from tiejax.lab.studies.exor.claim_values import TIED, UNTIED, Setup
from tiejax.lab.studies.exor.claims import NATS
from tiejax.lab.studies.exor.plateaus import Level
from tiejax.statistics.arms import ARMS, select_seeds
from tiejax.statistics.claims import Claim, assess


@dataclasses.dataclass(frozen=True)
class Responses:
    """Responses of each seed to each dose. doses: p. bound: |ln(p / (1 - p))|. Arrays are [dose, arm, seed].

    gap: the smallest |e1 - e2| |h| over the contexts whose target is in the pair; NaN for diverged members. excess: exact
    cross-entropy on the training split, less that of the Bayes predictor (nats); the worst of the dose for diverged members.
    solved: whether the member solved the task. bounded: whether the theory bounds the gap, that is, without an output bias.
    """

    doses: np.ndarray
    bound: np.ndarray
    gap: np.ndarray
    excess: np.ndarray
    solved: np.ndarray
    bounded: bool = True


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the least-squares slope of each seed's y `[dose, seed]` over x `[dose]`; NaN if all x are equal."""
    centred = x - x.mean()
    spread = centred @ centred
    return np.asarray(centred @ y / spread) if spread else np.full(y.shape[1], np.nan)


def analyse_doses(
    metrics: Mapping[str, np.ndarray],
    setups: Sequence[Setup],
    levels: Sequence[Sequence[Level]],
    scratch: Path | None = None,
) -> tuple[dict[str, Any], Responses]:
    """Return the body of results.json of a dose-and-response run, and the responses.

    The registered family is that of the claims about all doses; the claims of each dose by itself are exploratory. The seed
    axis of `metrics` holds all seeds of the first dose, then of the next; setups and levels are by dose (see `analyse`).
    """
    doses, per_dose = [setup.task.zero[0] for setup in setups], len(metrics["seeds"]) // len(setups)
    entries, found = [], []
    for number, (dose, setup) in enumerate(zip(doses, setups, strict=True)):
        selected = select_seeds(metrics, slice(number * per_dose, (number + 1) * per_dose))
        body, values = analyse(selected, setup, levels[number], scratch, registered=False)
        entries.append({"p": dose, "bayes_cross_entropy": setup.bayes_cross_entropy, **body})
        excess = values.cross_entropy - setup.bayes_cross_entropy  # settings refuse doses without exact risk
        found.append((values.diverged, values.gap("zero"), excess, values.solved.happened))
    diverged, gaps, excesses, solved = (np.array(of_doses) for of_doses in zip(*found, strict=True))
    bound = np.array([abs(math.log(dose / (1 - dose))) for dose in doses])
    gaps = np.where(diverged, np.nan, gaps)
    responses = Responses(np.array(doses), bound, gaps, excesses, solved, bounded=not setups[0].output_bias)
    seeds, with_diverged = metrics["seeds"][:per_dose], diverged.any((0, 1))
    return {
        "doses": entries,
        "seeds": seeds.tolist(),
        "excluded_seeds": seeds[with_diverged].tolist(),
        "non_finite": [row for entry in entries for row in entry["non_finite"]],
        "claims": [] if diverged.all() else assess(claims(responses)),
    }, responses


def claims(responses: Responses) -> list[Claim]:
    """Return the claims about doses: growth of the cost with the conflict; cost, and gap of solved models, at each dose."""
    bound, gap = responses.bound, responses.gap
    cost = responses.excess[:, TIED] - responses.excess[:, UNTIED]
    growth = [
        Claim(
            "dose-cost",
            "The stronger the conflict, the more cross-entropy tying costs.",
            "the slope of the exact cross-entropy (tied - untied) over |ln(p/(1-p))|",
            slopes(bound, cost),
            sign=1,
            unit="nats per nat",
        )
    ]
    costs = [
        Claim(
            f"tying-costs/{dose:g}",
            f"At p = {dose:g}, tying costs cross-entropy.",
            f"the exact cross-entropy at p = {dose:g} (tied - untied)",
            cost[number],
            sign=1,
            unit="nats",
            margin=NATS,
            replaced=np.isnan(gap[number]).any(0),
        )
        for number, dose in enumerate(responses.doses)
    ]
    gaps = [
        Claim(
            f"output-gap/{name}/{dose:g}",
            f"At p = {dose:g}, the output distance of the pair times |h| in solved {name} models is above "
            f"{bound[number]:.3f} in the mean.",
            f"the mean over solved {name} models at p = {dose:g} of the smallest |e1 - e2| |h| over contexts "
            f"(less {bound[number]:.3f})",
            (gap[number, arm] - bound[number])[responses.solved[number, arm]],
            sign=1,
            family="exploratory",  # solved models are chosen by their outcome
            one_arm=True,
        )
        for arm, name in enumerate(ARMS)
        for number, dose in enumerate(responses.doses)
        if bound[number] > 0 and responses.bounded
    ]
    same_conflict = np.ptp(bound) <= 1e-6  # then slopes are undefined
    return costs + gaps if same_conflict else growth + costs + gaps
