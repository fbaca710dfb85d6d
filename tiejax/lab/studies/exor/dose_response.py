r"""Dose and response: tied and untied models as a function of the strength of the conflict, |ln(p / (1 - p))|.

If two spellings of a bit have probabilities p and 1 - p, an optimal model satisfies h . (e1 - e2) = ln(p / (1 - p)) in every
context, hence |e1 - e2| |h| >= |ln(p / (1 - p))|: the theory's one quantitative prediction.
Source of the theory: Bertolotti and Cazzola, ICML 2024, which tests the single point p = .9.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.lab.studies.exor.analysis import analyse
from tiejax.lab.studies.exor.symbols import Symbols
from tiejax.lab.studies.exor.trajectories import SOLVED_WITHIN
from tiejax.statistics.arms import ARMS, select_seeds
from tiejax.statistics.claims import Claim, assess


@dataclasses.dataclass(frozen=True)
class Responses:
    """Responses of each seed to each dose. doses: p. bound: |ln(p / (1 - p))|. Arrays are [dose, arm, seed].

    gap: the smallest |e1 - e2| |h| over the contexts whose target is in the pair. excess: exact cross-entropy on the
    training split, less that of the Bayes predictor (nats). solved: whether the excess is below .1 nat.
    """

    doses: np.ndarray
    bound: np.ndarray
    seeds: np.ndarray
    gap: np.ndarray
    excess: np.ndarray
    solved: np.ndarray


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the least-squares slope of each seed's y `[dose, seed]` over x `[dose]`; NaN if all x are equal."""
    centred = x - x.mean()
    spread = centred @ centred
    return np.asarray(centred @ y / spread) if spread else np.full(y.shape[1], np.nan)


def analyse_doses(
    metrics: Mapping[str, np.ndarray],
    member_dose: np.ndarray,
    doses: Sequence[float],
    symbols: Sequence[Symbols],
    bayes_cross_entropy: Sequence[float],
    cycle: int,
    scratch: Path | None = None,
) -> tuple[dict[str, Any], Responses]:
    """Return the body of results.json of a dose-and-response run, and the responses of the seeds finite at every dose.

    metrics: the arrays of metrics.npz; the seed axis holds all seeds of the first dose, then of the next. member_dose: index of
    the dose at each position of that axis. symbols, bayes_cross_entropy (of the training split): by dose. scratch: as in
    `trajectories`.
    """
    entries, gaps, excesses = [], [], []
    finite_by_dose = np.reshape(metrics["finite"].all(axis=(0, 2)), (len(doses), -1))
    lasting = np.asarray(finite_by_dose.all(axis=0))
    for number, dose in enumerate(doses):
        first, last = np.flatnonzero(member_dose == number)[[0, -1]]
        selected = select_seeds(metrics, slice(first, last + 1))
        body, runs = analyse(selected, symbols[number], bayes_cross_entropy[number], cycle, scratch)
        entries.append({"p": dose, "bayes_cross_entropy": bayes_cross_entropy[number], **body})
        included = lasting[finite_by_dose[number]]
        loss = runs.final(runs.exact["cross_entropy"], exact=True)[:, included, 0]
        excesses.append(loss - bayes_cross_entropy[number])
        gaps.append(runs.final(runs.exact["gap_zero"], exact=True)[:, included])
    bound = np.array([abs(math.log(dose / (1 - dose))) for dose in doses])
    excess = np.array(excesses)
    seeds = metrics["seeds"][member_dose == 0]
    responses = Responses(np.array(doses), bound, seeds[lasting], np.array(gaps), excess, excess < SOLVED_WITHIN)
    return {
        "doses": entries,
        "seeds": seeds[lasting].tolist(),
        "excluded_seeds": seeds[~lasting].tolist(),
        "non_finite": [row for entry in entries for row in entry["non_finite"]],
        "claims": assess(claims(responses)) if lasting.any() else [],
    }, responses


def claims(responses: Responses) -> list[Claim]:
    """Return the claims about doses: growth of gap and cost with the conflict, and cost and gap at each dose."""
    bound, gap = responses.bound, responses.gap
    cost = responses.excess[:, 1] - responses.excess[:, 0]
    growth = [
        *(
            Claim(
                f"dose-gap/{name}",
                f"The stronger the conflict, the farther apart the pair in the output table of {name} models.",
                "slope of the smallest |e1 - e2| |h| over |ln(p/(1-p))|",
                slopes(bound, gap[:, arm]),
                sign=1,
            )
            for arm, name in enumerate(ARMS)
        ),
        Claim(
            "dose-cost",
            "The stronger the conflict, the more cross-entropy tying costs.",
            "slope of the exact cross-entropy (nats), tied - untied, over |ln(p/(1-p))|",
            slopes(bound, cost),
            sign=1,
        ),
    ]
    costs = [
        Claim(
            f"tying-costs/{dose:g}",
            f"At p = {dose:g}, tying costs cross-entropy.",
            "exact cross-entropy (nats), tied - untied",
            cost[number],
            sign=1,
        )
        for number, dose in enumerate(responses.doses)
    ]
    gaps = [
        Claim(
            f"output-gap/{name}/{dose:g}",
            f"At p = {dose:g}, the output distance of the pair in solved {name} models is at least {bound[number]:.3f}/|h|.",
            f"smallest |e1 - e2| |h| over contexts - {bound[number]:.3f}",
            (gap[number, arm] - bound[number])[responses.solved[number, arm]],
            sign=1,
        )
        for arm, name in enumerate(ARMS)
        for number, dose in enumerate(responses.doses)
        if bound[number] > 0
    ]
    same_conflict = np.ptp(bound) <= 1e-6  # then slopes are undefined
    return costs + gaps if same_conflict else growth + costs + gaps
