"""Final values, outcomes and claims of an EXor run, as stored in results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.geometry.uses import over_training
from tiejax.lab.runs.gate import untested
from tiejax.lab.studies.exor import plateaus
from tiejax.lab.studies.exor.claim_values import Setup, Values
from tiejax.lab.studies.exor.claims import claims
from tiejax.lab.studies.exor.trajectories import solving_window, trajectories
from tiejax.statistics.arms import ARMS, diverged_members
from tiejax.statistics.claims import assess


def analyse(
    metrics: Mapping[str, np.ndarray],
    setup: Setup,
    levels: Sequence[plateaus.Level] = (),
    scratch: Path | None = None,
    registered: bool = True,
) -> tuple[dict[str, Any], Values]:
    """Return the body of results.json, and the values of all seeds, from the arrays of metrics.npz.

    Diverged members stay in: they did not solve the task, have the worst loss, and count against claims about distances; their
    final values are NaN. levels: the plateaus of the task. scratch: as in `trajectories`. registered: whether the claims are
    tested as the run's registered family; otherwise they are all exploratory.
    """
    splits = [str(name) for name in metrics["splits"]]
    values = values_of(metrics, setup, scratch)
    lasting, found = ~values.diverged.any(0), claims(values)
    ratio, cosine = metrics["use_ratio"][:, lasting], metrics["use_cosine"][:, lasting]
    body: dict[str, Any] = {
        **diverged_members(metrics)[1],
        "final": summary(values, splits),
        **_outcomes(values, levels),
        "uses": over_training(metrics["step"], ratio, cosine, ARMS) if lasting.any() else [],
        "claims": assess(found if registered else untested(found)),
    }
    return body, values


def values_of(metrics: Mapping[str, np.ndarray], setup: Setup, scratch: Path | None = None) -> Values:
    """Return the values of all seeds; arguments as in `analyse`."""
    return Values(trajectories(metrics, setup.task, setup.cycle, scratch=scratch), setup, diverged_members(metrics)[0])


def _outcomes(values: Values, levels: Sequence[plateaus.Level]) -> dict[str, Any]:
    """Return what became of the members: who solved the task and when, and plateaus.

    Without exact risk all are None. Plateaus are None if no levels are given.
    """
    body: dict[str, Any] = dict.fromkeys(("solved", "solve_time", "solving_window", "plateaus"))
    if not values.exact:
        return body
    runs, solved, cycle = values.runs, values.solved, values.setup.cycle
    losses = np.where(values.diverged, np.nan, runs.exact["cross_entropy"][..., -1, 0])
    return body | {
        "solved": {name: solved.happened[arm].tolist() for arm, name in enumerate(ARMS)},
        "solve_time": {name: solved.time[arm].tolist() for arm, name in enumerate(ARMS)},
        "solving_window": solving_window(runs.exact_steps, cycle),
        "plateaus": plateaus.table(losses, levels, ARMS) if levels else None,
    }


def summary(values: Values, splits: Sequence[str]) -> dict[str, Any]:
    """Return the final values by arm, one value per seed: the entry `final` of results.json. NaN for diverged members."""
    runs, diverged = values.runs, values.diverged

    def final(series: np.ndarray, arm: int, exact: bool = False) -> np.ndarray:
        found = runs.final(series, exact=exact)[arm]
        return np.where(diverged[arm].reshape(-1, *[1] * (found.ndim - 1)), np.nan, found)

    def of_arm(arm: int) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        for measure in ("cross_entropy", "accuracy"):
            risk = final(runs.exact[measure], arm, exact=True) if measure in runs.exact else None
            entry[f"exact_{measure}"] = risk if risk is None else {split: risk[:, k].tolist() for k, split in enumerate(splits)}
        for measure, tables in (("distance", runs.distance), ("relative_distance", runs.relative)):
            entry[measure] = {
                table: {pair: final(series, arm).tolist() for pair, series in pairs.items()} for table, pairs in tables.items()
            }
        return entry

    return {name: of_arm(arm) for arm, name in enumerate(ARMS)}
