"""Final values, solved members and claims of an EXor run, as stored in results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.geometry.uses import over_training
from tiejax.lab.studies.exor.claims import claims
from tiejax.lab.studies.exor.symbols import Symbols
from tiejax.lab.studies.exor.trajectories import Trajectories, solved, trajectories
from tiejax.statistics.arms import ARMS, finite_seeds
from tiejax.statistics.claims import assess


def analyse(
    metrics: Mapping[str, np.ndarray], symbols: Symbols, bayes_cross_entropy: float, cycle: int, scratch: Path | None = None
) -> tuple[dict[str, Any], Trajectories]:
    """Return the body of results.json, and the trajectories of the seeds whose members all stayed finite.

    metrics: the arrays of metrics.npz. bayes_cross_entropy: for the training split. cycle: steps per learning-rate cycle.
    scratch: as in `trajectories`.
    The claims are tested twice: over all seeds, and over the seeds whose tied and untied members both solved the task.
    """
    splits, seeds = [str(name) for name in metrics["splits"]], metrics["seeds"]
    finite, who_lasted = finite_seeds(metrics)

    def runs_of(chosen: np.ndarray) -> Trajectories:
        return trajectories(metrics, symbols, cycle, chosen, scratch)

    runs = runs_of(finite)
    body: dict[str, Any] = {
        **who_lasted,
        "final": summary(runs, splits),
        "final_last": summary(runs, splits, last=True),
        "solved": None,
        "uses": [],
        "claims": [],
        "solved_pairs": [],
        "claims_solved_pairs": [],
    }
    if not finite.any():
        return body, runs
    ratio, cosine = metrics["use_ratio"][:, finite], metrics["use_cosine"][:, finite]
    body["uses"] = over_training(metrics["step"], ratio, cosine, ARMS)
    body["claims"] = assess(claims(runs, symbols, bayes_cross_entropy, cycle))
    is_solved = solved(runs, bayes_cross_entropy)
    if is_solved is not None:
        both = is_solved.all(0)
        body["solved"] = {name: is_solved[arm].tolist() for arm, name in enumerate(ARMS)}
        body["solved_pairs"] = seeds[finite][both].tolist()
        if both.any():
            chosen = finite.copy()
            chosen[finite] = both
            among_solved = claims(runs_of(chosen), symbols, bayes_cross_entropy, cycle)
            body["claims_solved_pairs"] = assess([claim for claim in among_solved if claim.id != "solved"])
    return body, runs


def summary(runs: Trajectories, splits: Sequence[str], last: bool = False) -> dict[str, Any]:
    """Return the final values by arm, one value per seed: the entry `final` of results.json.

    `output_side` holds the quantities that the theory predicts for an optimal output table, per pair and as measured by
    `ExactRisk`: the gap |e1 - e2| |h|, the mean log ratio h . (e1 - e2), and its root mean square error against the true one.
    """
    body: dict[str, Any] = {}
    for arm, name in enumerate(ARMS):
        entry: dict[str, Any] = {}
        for measure in ("cross_entropy", "accuracy"):
            if measure in runs.exact:
                values = runs.final(runs.exact[measure], exact=True, last=last)[arm]
                entry[f"exact_{measure}"] = {split: values[:, k].tolist() for k, split in enumerate(splits)}
            else:
                entry[f"exact_{measure}"] = None
        entry["output_side"] = {
            name: runs.final(values, exact=True, last=last)[arm].tolist()
            for name, values in runs.exact.items()
            if name.startswith(("gap_", "log_ratio_"))
        }
        for measure, tables in (("distance", runs.distance), ("relative_distance", runs.relative)):
            entry[measure] = {
                table: {pair: runs.final(values, last=last)[arm].tolist() for pair, values in pairs.items()}
                for table, pairs in tables.items()
            }
        body[name] = entry
    return body
