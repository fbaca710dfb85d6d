"""Untie curves: final values as a function of the step at which the tie ended, by policy, with paired statistics.

All curves share their ends: members untied at step 0 (never tied, from equal tables) and members that were always tied. The
third baseline is never tied and starts from independent tables, the usual initialisation.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from tiejax.statistics.claims import Claim, assess
from tiejax.statistics.paired_test import RESAMPLES, holm, paired_test
from tiejax.statistics.untie_arms import BASELINES, Arms


def median_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % percentile-bootstrap interval of the median over seeds of `[..., seed]` (9,999 resamples, fixed seed)."""
    if values.shape[-1] < 2:
        return np.full(values.shape[:-1], np.nan), np.full(values.shape[:-1], np.nan)
    seeds = np.random.default_rng(0).integers(0, values.shape[-1], (RESAMPLES, values.shape[-1]))
    medians = np.stack([np.median(row[seeds], axis=-1) for row in values.reshape(-1, values.shape[-1])])
    low, high = np.quantile(medians, [0.025, 0.975], axis=-1)
    return low.reshape(values.shape[:-1]), high.reshape(values.shape[:-1])


def best_step(steps: np.ndarray, loss: np.ndarray) -> tuple[int, tuple[int, int]]:
    """Return the step of the lowest median of `loss[step, seed]`, and its 95 % interval from a bootstrap over seeds."""
    seeds = np.random.default_rng(0).integers(0, loss.shape[1], (RESAMPLES, loss.shape[1]))
    medians = np.stack([np.median(row[seeds], axis=-1) for row in loss])
    best = np.sort(steps[np.argmin(medians, axis=0)])
    low, high = best[int(0.025 * len(best))], best[int(np.ceil(0.975 * len(best))) - 1]
    return int(steps[np.argmin(np.median(loss, axis=1))]), (int(low), int(high))


def analyse(
    arms: Arms, loss: np.ndarray, solved: np.ndarray | None, others: Mapping[str, np.ndarray], name: str
) -> dict[str, Any]:
    """Return the results of an untie run: its ends, curves with paired tests against each baseline, best steps and claims.

    loss: final loss `[arm, seed]`, called `name` in claims. solved: whether a member solved its task, `[arm, seed]`, or None.
    others: further final values `[arm, seed]`, reported as medians. The steps of a curve are tested against a baseline as one
    family (Holm).
    """
    baselines = {base: arms.baseline(base) for base in BASELINES}

    def summary(number: int) -> dict[str, Any]:
        is_solved = None if solved is None else solved[number]
        return _summary(loss[number], is_solved, {key: values[number] for key, values in others.items()})

    curves = []
    for curve, numbers in arms.curves().items():
        best, interval = best_step(arms.step[numbers], loss[numbers])
        curves.append(
            {
                "curve": curve,
                "steps": arms.step[numbers].tolist(),
                "points": [summary(number) for number in numbers.tolist()],
                "against": {base: _against(loss[numbers[1:-1]], loss[number]) for base, number in baselines.items()},
                "best_step": best,
                "best_step_interval": list(interval),
            }
        )
    ends = {base: {"words": BASELINES[base], **summary(number)} for base, number in baselines.items()}
    return {"ends": ends, "curves": curves, "claims": assess(claims(arms, loss, name))}


def claims(arms: Arms, loss: np.ndarray, name: str) -> list[Claim]:
    """Return a claim for each curve and each baseline: untying in mid-training gives a lower final loss.

    The statistic is the mean final loss over the untie steps in between, minus the baseline's. A best step chosen on the same
    seeds would be biased in favour of untying, and one chosen for each seed on the other seeds would be biased against it.
    """
    return [
        Claim(
            f"untying-helps/{base}/{curve.replace(', new ', '-')}",
            f"Untying in mid-training ({curve}) ends with a lower {name} than models {words}.",
            f"{name}, mean over the untie steps in between - {base}",
            loss[numbers[1:-1]].mean(axis=0) - loss[arms.baseline(base)],
            sign=-1,
        )
        for curve, numbers in arms.curves().items()
        for base, words in BASELINES.items()
    ]


def _against(loss: np.ndarray, baseline: np.ndarray) -> list[dict[str, Any]]:
    """Return the paired tests of losses `[step, seed]` against those of a baseline `[seed]`, adjusted over the steps."""
    tests = [paired_test(at_step - baseline) for at_step in loss]
    adjusted = holm([test.p for test in tests])
    return [
        {"estimate": test.estimate, "interval": test.interval, "p": test.p, "p_adjusted": p, "n": test.n}
        for test, p in zip(tests, adjusted, strict=True)
    ]


def _summary(loss: np.ndarray, solved: np.ndarray | None, others: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return an arm's losses `[seed]`, their median with its interval, the number that solved the task, and other medians."""
    low, high = median_interval(loss)
    entry: dict[str, Any] = {"loss": loss.tolist(), "median": float(np.median(loss)), "interval": [float(low), float(high)]}
    if solved is not None:
        share = stats.binomtest(int(solved.sum()), len(solved)).proportion_ci(method="wilson")
        entry |= {"solved": int(solved.sum()), "solved_interval": [float(share.low), float(share.high)]}
    return entry | {"medians": {key: float(np.median(values)) for key, values in others.items()}}
