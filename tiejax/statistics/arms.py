"""Names of the two arms of a paired comparison, selection of seeds, and members that diverged."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

ARMS = ("untied", "tied")


def select_seeds(metrics: Mapping[str, np.ndarray], chosen: np.ndarray | slice, least_axes: int = 3) -> dict[str, np.ndarray]:
    """Return the arrays of metrics.npz for selected seeds, along the second axis of `[arm, seed, ...]`.

    chosen: a boolean mask or indices, or a slice, which returns views. least_axes: arrays with fewer axes have no seed axis,
    except `seeds` itself.
    """
    selected = {name: values[:, chosen] if values.ndim >= least_axes else values for name, values in metrics.items()}
    return selected | {"seeds": metrics["seeds"][chosen]}


def finite_seeds(metrics: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a mask of the seeds that stayed finite in every arm, and the fields of results.json on excluded seeds.

    metrics: `finite[arm, seed, record]`, and the labels of its axes, `arms`, `seeds` and `step`.
    """
    seeds, finite_members = metrics["seeds"], np.asarray(metrics["finite"])
    finite = np.asarray(finite_members.all(axis=(0, 2)))
    non_finite = [
        {
            "arm": str(metrics["arms"][arm]),
            "seed": int(seeds[seed]),
            "step": int(metrics["step"][np.argmin(finite_members[arm, seed])]),
        }
        for arm, seed in np.argwhere(~finite_members.all(axis=2)).tolist()
    ]
    return finite, {"seeds": seeds[finite].tolist(), "excluded_seeds": seeds[~finite].tolist(), "non_finite": non_finite}


def diverged_members(metrics: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    """Return which members diverged, `[arm, seed]`, and the fields of results.json on them.

    metrics: as in `finite_seeds`. A member diverged if a record of it is not finite. Its seed stays among `seeds` and in every
    comparison (see `replace_diverged`); `excluded_seeds` lists the seeds with such a member, and `non_finite` the members.
    """
    diverged = np.asarray(~np.asarray(metrics["finite"]).all(axis=2))
    return diverged, finite_seeds(metrics)[1] | {"seeds": metrics["seeds"].tolist()}


def replace_diverged(values: np.ndarray, diverged: np.ndarray, worst: Literal["high", "low"]) -> np.ndarray:
    """Return the values with those of diverged members replaced by the worst value of any other member.

    A diverged member thus has the worst rank of its arm, and never a better one than the other arm of its seed. values,
    diverged: `[arm, seed]`. worst: which values are the worst: `high`, as for losses and times, or `low`. If all members
    diverged, all are NaN.
    """
    remaining = values[~diverged]
    if not remaining.size:
        return np.full(values.shape, np.nan)
    return np.where(diverged, remaining.max() if worst == "high" else remaining.min(), values)


def replace_undefined(differences: np.ndarray, sign: int) -> np.ndarray:
    """Return one difference per seed with those not finite replaced by the one that speaks most against the claimed sign.

    For comparisons in which no value is better than another, such as distances: there a diverged member counts against the
    claim. Unchanged if no difference is finite.
    """
    finite = np.isfinite(differences)
    if not finite.any():
        return differences
    return np.where(finite, differences, differences[finite].min() if sign > 0 else differences[finite].max())


def undefined_replaced(differences: np.ndarray, sign: int) -> dict[str, Any]:
    """Return the fields `differences`, as `replace_undefined` returns them, and `replaced` (those not finite) of a claim."""
    return {"differences": replace_undefined(differences, sign), "replaced": ~np.isfinite(differences)}
