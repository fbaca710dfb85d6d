"""Final values, outcomes and claims of an EXor run, as stored in results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.geometry.uses import over_training
from tiejax.lab.studies.exor import plateaus
from tiejax.lab.studies.exor.claim_values import TIED, UNTIED, Setup, Values, outcome, values_of
from tiejax.lab.studies.exor.claims import claims, claims_among_solved, exploratory
from tiejax.lab.studies.exor.outcomes import THRESHOLDS, first_passage, solving_window
from tiejax.lab.studies.exor.trajectories import Trajectories, trajectories
from tiejax.statistics.arms import ARMS, diverged_members
from tiejax.statistics.claims import Claim, assess


def analyse(
    metrics: Mapping[str, np.ndarray],
    setup: Setup,
    levels: Sequence[plateaus.Level] = (),
    scratch: Path | None = None,
    registered: bool = True,
) -> tuple[dict[str, Any], Trajectories]:
    """Return the body of results.json, and the trajectories of all seeds.

    Diverged members stay in: they did not solve the task, have the worst loss, and count against claims about distances; their
    final values are NaN.

    Args:
        metrics: the arrays of metrics.npz.
        setup: task and models.
        levels: the plateaus of the task.
        scratch: as in `trajectories`.
        registered: whether the claims are tested as the run's registered family; otherwise they are all exploratory.
    """
    splits, seeds = [str(name) for name in metrics["splits"]], metrics["seeds"]
    diverged, who_diverged = diverged_members(metrics)
    runs = trajectories(metrics, setup.task, setup.cycle, scratch=scratch)
    body: dict[str, Any] = {
        **who_diverged,
        "final": summary(runs, splits, diverged),
        "final_last": summary(runs, splits, diverged, last=True),
        **_outcomes(runs, setup, levels, diverged),
        "uses": [],
        "claims": [],
        "solved_pairs": [],
        "claims_solved_pairs": [],
    }
    if diverged.all():
        return body, runs
    lasting = ~diverged.any(0)
    if lasting.any():
        ratio, cosine = metrics["use_ratio"][:, lasting], metrics["use_cosine"][:, lasting]
        body["uses"] = over_training(metrics["step"], ratio, cosine, ARMS)
    values, end = values_of(runs, setup, diverged), int(runs.steps[-1])
    found = claims(values, setup, end)
    body["claims"] = assess(found if registered else exploratory(found))
    return body | _among_solved(values, setup, end, seeds), runs


def registered_claims(metrics: Mapping[str, np.ndarray], setup: Setup, scratch: Path | None = None) -> list[Claim]:
    """Return the claims that `analyse` tests; none if all members diverged."""
    diverged, _ = diverged_members(metrics)
    if diverged.all():
        return []
    runs = trajectories(metrics, setup.task, setup.cycle, scratch=scratch)
    return claims(values_of(runs, setup, diverged), setup, int(runs.steps[-1]))


def _among_solved(values: Values, setup: Setup, end: int, seeds: np.ndarray) -> dict[str, Any]:
    """Return the seeds whose models both solved the task, and the claims about them, if there are any."""
    if values.risk is None or not (both := values.risk.solved.all(0)).any():
        return {}
    return {"solved_pairs": seeds[both].tolist(), "claims_solved_pairs": assess(claims_among_solved(values, setup, end))}


def _outcomes(runs: Trajectories, setup: Setup, levels: Sequence[plateaus.Level], diverged: np.ndarray) -> dict[str, Any]:
    """Return what became of the members: who solved the task and when, first passages, and plateaus.

    Without exact risk all but the first passages are None. Plateaus are None if no levels are given.
    """
    solved = outcome(runs, setup, diverged)
    body: dict[str, Any] = {
        "solved": None,
        "solve_time": None,
        "solving_window": None,
        "first_passage": first_passages(runs, setup, diverged),
        "plateaus": None,
    }
    if solved is None:
        return body
    losses = np.where(diverged[..., None], np.nan, runs.exact["cross_entropy"][..., 0])
    return body | {
        "solved": {name: solved.happened[arm].tolist() for arm, name in enumerate(ARMS)},
        "solve_time": {name: solved.time[arm].tolist() for arm, name in enumerate(ARMS)},
        "solving_window": solving_window(runs.exact_steps, setup.cycle),
        "plateaus": plateaus.table(runs.exact_steps, losses, levels, setup.cycle, ARMS) if levels else None,
    }


def first_passages(runs: Trajectories, setup: Setup, diverged: np.ndarray) -> list[dict[str, Any]]:
    """Return a row per table and threshold on the first passage of the pair for which DH holds; none without such a pair.

    `share` of the members that come nearer than the threshold, `mean`: the restricted mean time, censored at the end of the
    run, and `median`, None if fewer than half of the members do. Diverged members count as never near.
    """
    pair, rows = setup.task.holding, []
    for name, table, arm in (("untied input", "input", UNTIED), ("untied output", "output", UNTIED), ("tied", "input", TIED)):
        for threshold in THRESHOLDS if pair else ():
            found = first_passage(runs.steps, runs.relative[table][str(pair)][arm], threshold)
            near = found.happened & ~diverged[arm]
            time = np.where(near, found.time, runs.steps[-1])
            median = float(np.median(np.where(near, time, np.inf)))
            rows.append(
                {"pair": pair, "table": name, "threshold": threshold, "share": float(near.mean()), "mean": float(time.mean())}
                | {"median": median if np.isfinite(median) else None}
            )
    return rows


def summary(runs: Trajectories, splits: Sequence[str], diverged: np.ndarray, last: bool = False) -> dict[str, Any]:
    """Return the final values by arm, one value per seed: the entry `final` of results.json. NaN for diverged members.

    `output_side` holds the quantities that the theory predicts for an optimal output table, per pair and as measured by
    `ExactRisk`: the gap |e1 - e2| |h|, the mean log ratio h . (e1 - e2), and its root mean square error against the true one.
    """

    def final(values: np.ndarray, exact: bool = False) -> np.ndarray:
        found = runs.final(values, exact=exact, last=last)
        return np.where(diverged.reshape(*diverged.shape, *[1] * (found.ndim - 2)), np.nan, found)

    body: dict[str, Any] = {}
    for arm, name in enumerate(ARMS):
        entry: dict[str, Any] = {}
        for measure in ("cross_entropy", "accuracy"):
            if measure in runs.exact:
                values = final(runs.exact[measure], exact=True)[arm]
                entry[f"exact_{measure}"] = {split: values[:, k].tolist() for k, split in enumerate(splits)}
            else:
                entry[f"exact_{measure}"] = None
        entry["output_side"] = {
            name: final(values, exact=True)[arm].tolist()
            for name, values in runs.exact.items()
            if name.startswith(("gap_", "log_ratio_"))
        }
        for measure, tables in (("distance", runs.distance), ("relative_distance", runs.relative)):
            entry[measure] = {
                table: {pair: final(values)[arm].tolist() for pair, values in pairs.items()} for table, pairs in tables.items()
            }
        body[name] = entry
    return body
