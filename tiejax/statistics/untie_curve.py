"""Untie curves: final values as a function of the step at which the tie ended, by policy, with paired statistics.

All curves share their ends: members untied at step 0 (never tied, from equal tables) and members that were always tied. The
third baseline is never tied and starts from independent tables, the usual initialisation.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tiejax.statistics.arms import replace_diverged
from tiejax.statistics.claims import Claim, Family, assess
from tiejax.statistics.proportions import wilson
from tiejax.statistics.sign_flips import simultaneous_band
from tiejax.statistics.untie_arms import BASELINES, Arms


class Finals(NamedTuple):
    """Final values of a run.

    loss: `[arm, seed]`. diverged: whether a member became non-finite, `[arm, seed]`. solved: whether a member solved its task,
    `[arm, seed]`, or None. others: further final values, `[arm, seed]` of the seeds without a diverged member, by name.
    """

    loss: np.ndarray
    diverged: np.ndarray
    solved: np.ndarray | None
    others: Mapping[str, np.ndarray]


def analyse(arms: Arms, finals: Finals, name: str, margin: float, family: Family = "registered") -> dict[str, Any]:
    """Return the results of an untie run: its baselines, its curves with their differences from each baseline, its claims.

    Bands are simultaneous: those of the losses contain all means of the run with probability 95 %, as do those of the
    differences from one baseline. Diverged members have the highest loss of their arm and have not solved the task.

    name: of the loss in claims. margin: the smallest difference of interest. family: of the claims; exploratory ones are not
    tested.
    """
    loss = replace_diverged(finals.loss, finals.diverged, "high")
    found = assess(claims(arms, finals.loss, finals.diverged, name, margin, family))
    solved = None if finals.solved is None else finals.solved & ~finals.diverged
    points = _points(loss, solved, finals.others)
    baselines = {base: arms.baseline(base) for base in BASELINES}
    between = np.flatnonzero(arms.policy != "")
    against = {base: _differences(loss, between, number) for base, number in baselines.items()}
    curves = [
        {
            "curve": curve,
            "steps": arms.step[numbers].tolist(),
            "points": [points[number] for number in numbers],
            "claims": {base: claim_id(base, curve) for base in BASELINES},
            "against": {base: [by_arm[number] for number in numbers[1:-1].tolist()] for base, by_arm in against.items()},
        }
        for curve, numbers in arms.curves().items()
    ]
    ends = {base: {"words": BASELINES[base], **points[number]} for base, number in baselines.items()}
    return {"ends": ends, "curves": curves, "claims": found}


def claim_id(base: str, curve: str) -> str:
    """Return the id of the claim that a curve's policy is better than a baseline."""
    return f"untying-helps/{base}/{curve.replace(', new ', '-')}"


def claims(
    arms: Arms, loss: np.ndarray, diverged: np.ndarray, name: str, margin: float, family: Family = "registered"
) -> list[Claim]:
    """Return a claim for each curve and each baseline: untying in mid-training gives a lower final loss.

    A difference is a seed's mean final loss over the untie steps in between, minus its loss with the baseline. A best step
    chosen on the same seeds would be biased in favour of untying, and one chosen for each seed on the other seeds would be
    biased against it. loss, diverged: of each member, `[arm, seed]`.
    """
    loss = replace_diverged(loss, diverged, "high")
    return [
        Claim(
            claim_id(base, curve),
            f"Untying in mid-training ({curve}) ends with a lower {name} than models {words}.",
            f"the {name}, untied in mid-training ({curve}; mean over the untie steps) - {words}",
            loss[numbers[1:-1]].mean(axis=0) - loss[arms.baseline(base)],
            sign=-1,
            family=family,
            unit="nats",
            margin=margin,
            replaced=np.asarray(diverged[[*numbers[1:-1], arms.baseline(base)]].any(axis=0)),
        )
        for curve, numbers in arms.curves().items()
        for base, words in BASELINES.items()
    ]


def _points(loss: np.ndarray, solved: np.ndarray | None, others: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return for each arm its losses, their mean with its band, the number of seeds that solved the task, and other means."""
    points = []
    for arm, (mean, low, high) in enumerate(zip(*simultaneous_band(loss), strict=True)):
        point: dict[str, Any] = {"loss": loss[arm].tolist(), "mean": float(mean), "band": [float(low), float(high)]}
        if solved is not None:
            # Bonferroni: the score intervals of all arms hold simultaneously.
            number = int(solved[arm].sum())
            point |= {"solved": number, "solved_band": list(wilson(number, solved.shape[1], 0.05 / len(loss)))}
        means = {key: float(values[arm].mean()) if values[arm].size else None for key, values in others.items()}
        points.append(point | {"means": means})
    return points


def _differences(loss: np.ndarray, between: np.ndarray, baseline: int) -> dict[int, dict[str, Any]]:
    """Return the mean difference of each arm in `between` from a baseline, with its band."""
    bands = simultaneous_band(loss[between] - loss[baseline])
    return {
        number: {"estimate": float(mean), "band": [float(low), float(high)]}
        for number, mean, low, high in zip(between.tolist(), *bands, strict=True)
    }
