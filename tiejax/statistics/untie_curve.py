"""What untying in mid-training does: final values over the step at which the tie ended, by policy, with paired statistics.

Every curve shares its ends: members untied at step 0 (never tied, from equal tables) and members that were always tied. A third
baseline is never tied and starts from independent tables, as models are usually made.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from tiejax.statistics.claims import Claim, assess
from tiejax.statistics.paired_test import RESAMPLES, holm, paired_test

BASELINES = {
    "tied": "always tied",
    "equal": "never tied, from equal tables",
    "independent": "never tied, from independent tables",
}


@dataclasses.dataclass(frozen=True)
class Arms:
    """The arms of a run: the step at which each untied, under which policy, which table was new (`""` at the ends).

    step: 0 for never tied from equal tables, the last step for always tied, -1 for never tied from independent tables.
    """

    step: np.ndarray
    policy: np.ndarray
    new: np.ndarray

    @property
    def last(self) -> int:
        return int(self.step.max())

    @classmethod
    def of(
        cls, untie_at: Sequence[int | float], steps: int, policies: Sequence[str], new: Sequence[str] = ("output",)
    ) -> "Arms":
        """Return the three ends, then every policy at every step in between, `zero` ones for every new table.

        untie_at: whole steps, or fractions of all steps (written with a point).
        """
        meant = {round(one * steps) if isinstance(one, float) else one for one in untie_at}
        inside = sorted(step for step in meant if 0 < step < steps)
        rows = [(-1, "", ""), (0, "", ""), (steps, "", "")]
        for policy in policies:
            rows += [(step, policy, table) for table in (new if policy.startswith("zero") else new[:1]) for step in inside]
        columns = zip(*rows, strict=True)
        return cls(*(np.array(column) for column in columns))

    @property
    def names(self) -> list[str]:
        """Name every arm, as folders and files can be called."""
        known = {self.baseline(name): f"never-tied-{name}" for name in ("equal", "independent")} | {
            self.baseline("tied"): "tied"
        }
        return [
            known.get(number, f"{policy}-{table}-{step}")
            for number, (step, policy, table) in enumerate(zip(self.step, self.policy, self.new, strict=True))
        ]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return what metrics.npz says of the arms."""
        return {"arms": np.array(self.names), "untie_step": self.step, "policy": self.policy, "new": self.new}

    def baseline(self, name: str) -> int:
        """Return the number of the arm that is a baseline."""
        return int(np.flatnonzero(self.step == {"tied": self.last, "equal": 0, "independent": -1}[name])[0])

    def curves(self) -> dict[str, np.ndarray]:
        """Return by curve the numbers of its arms, in the order of their steps, both ends among them."""
        ends = [self.baseline("equal"), self.baseline("tied")]
        found: dict[str, list[int]] = {}
        for number in np.argsort(self.step, kind="stable"):
            if self.policy[number]:
                table = f", new {self.new[number]}" if str(self.policy[number]).startswith("zero") else ""
                found.setdefault(f"{self.policy[number]}{table}", []).append(int(number))
        return {name: np.array([ends[0], *inside, ends[1]]) for name, inside in found.items()}


def median_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % percentile-bootstrap interval of the median over seeds of `[..., seed]` (9,999 resamples, fixed seed)."""
    if values.shape[-1] < 2:
        return np.full(values.shape[:-1], np.nan), np.full(values.shape[:-1], np.nan)
    draws = np.random.default_rng(0).integers(0, values.shape[-1], (RESAMPLES, values.shape[-1]))
    medians = np.stack([np.median(row[draws], axis=-1) for row in values.reshape(-1, values.shape[-1])])
    low, high = np.quantile(medians, [0.025, 0.975], axis=-1)
    return low.reshape(values.shape[:-1]), high.reshape(values.shape[:-1])


def best_step(steps: np.ndarray, loss: np.ndarray) -> tuple[int, tuple[int, int]]:
    """Return the step whose median loss `[step, seed]` is lowest, and the 95 % bootstrap interval over seeds of that step."""
    draws = np.random.default_rng(0).integers(0, loss.shape[1], (RESAMPLES, loss.shape[1]))
    medians = np.stack([np.median(row[draws], axis=-1) for row in loss])
    best = np.sort(steps[np.argmin(medians, axis=0)])
    low, high = best[int(0.025 * len(best))], best[int(np.ceil(0.975 * len(best))) - 1]
    return int(steps[np.argmin(np.median(loss, axis=1))]), (int(low), int(high))


def analyse(
    arms: Arms, loss: np.ndarray, solved: np.ndarray | None, others: Mapping[str, np.ndarray], name: str
) -> dict[str, Any]:
    """Return what results.json says: ends, curves with paired differences against every baseline, best steps, claims.

    loss: final, `[arm, seed]`, called `name` in words. solved: whether a member solved its task. others: further final
    values `[arm, seed]`, of which medians are told. Steps inside a curve are tested against a baseline together (Holm).
    A claim takes the mean over them: a best step chosen on the same seeds would flatter untying, and one chosen for each seed
    on the others would slander it, since where a seed is lucky the others are less so.
    """
    bases = {base: arms.baseline(base) for base in BASELINES}
    ends = {base: {"words": BASELINES[base], **_summary(number, loss, solved, others)} for base, number in bases.items()}
    curves, claims = [], []
    for curve, numbers in arms.curves().items():
        inside = numbers[1:-1]
        best, interval = best_step(arms.step[numbers], loss[numbers])
        against = {}
        for base, number in bases.items():
            tests = [paired_test(loss[one] - loss[number]) for one in inside]
            adjusted = holm([test.p for test in tests])
            against[base] = [
                {"estimate": test.estimate, "interval": test.interval, "p": test.p, "p_adjusted": p, "n": test.n}
                for test, p in zip(tests, adjusted, strict=True)
            ]
            claims.append(
                Claim(
                    f"untying-helps/{base}/{curve.replace(', new ', '-')}",
                    f"Untying in mid-training ({curve}) ends with a lower {name} than models {BASELINES[base]}.",
                    f"{name}, mean over the untie steps in between - {base}",
                    loss[inside].mean(axis=0) - loss[number],
                    -1,
                )
            )
        curves.append(
            {
                "curve": curve,
                "steps": arms.step[numbers].tolist(),
                "points": [_summary(number, loss, solved, others) for number in numbers.tolist()],
                "against": against,
                "best_step": best,
                "best_step_interval": list(interval),
            }
        )
    return {"ends": ends, "curves": curves, "claims": assess(claims)}


def _summary(number: int, loss: np.ndarray, solved: np.ndarray | None, others: Mapping[str, np.ndarray]) -> dict[str, Any]:
    low, high = median_interval(loss[number])
    found: dict[str, Any] = {"loss": loss[number].tolist(), "median": float(np.median(loss[number]))}
    found["interval"] = [float(low), float(high)]
    if solved is not None:
        share = stats.binomtest(int(solved[number].sum()), solved.shape[1]).proportion_ci(method="wilson")
        found |= {"solved": int(solved[number].sum()), "solved_interval": [float(share.low), float(share.high)]}
    return found | {"medians": {key: float(np.median(values[number])) for key, values in others.items()}}
