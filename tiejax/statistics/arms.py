"""Arms that are compared in pairs: their names, and the seeds that stayed finite in all of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

ARMS = ("untied", "tied")


def select_seeds(metrics: Mapping[str, np.ndarray], chosen: np.ndarray | slice, least_axes: int = 3) -> dict[str, np.ndarray]:
    """Return the arrays of metrics.npz for the chosen places of the seed axis, the second axis of `[arm, seed, ...]`.

    Those chosen by a slice are not copied. least_axes: arrays of fewer axes have none for the seed, but for `seeds` itself.
    """
    kept = {name: values[:, chosen] if values.ndim >= least_axes else values for name, values in metrics.items()}
    return kept | {"seeds": metrics["seeds"][chosen]}


def finite_seeds(metrics: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    """Return which places of the seed axis stayed finite in every arm, and what results.json says of the others.

    metrics: `finite[arm, seed, record]`, names and numbers of its axes being `arms`, `seeds` and `step`.
    """
    seeds, lasting = metrics["seeds"], np.asarray(metrics["finite"])
    finite = np.asarray(lasting.all(axis=(0, 2)))
    left = [
        {
            "arm": str(metrics["arms"][arm]),
            "seed": int(seeds[seed]),
            "step": int(metrics["step"][np.argmin(lasting[arm, seed])]),
        }
        for arm, seed in np.argwhere(~lasting.all(axis=2)).tolist()
    ]
    return finite, {"seeds": seeds[finite].tolist(), "excluded_seeds": seeds[~finite].tolist(), "non_finite": left}
