"""Names of the two arms of a paired comparison, and selection of the seeds that stayed finite in all arms."""

from collections.abc import Mapping
from typing import Any

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
