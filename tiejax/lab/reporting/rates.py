"""The table of learning rates that were tried."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def rates_table(tuning: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return a table with a row for each learning rate that was tried; tuning: as in results.json, by kind of models.

    The loss of a model that diverged is None in results.json.
    """
    rows = []
    for kind, tried in tuning.items():
        for rate, losses in zip(tried["rates"], tried["losses"], strict=True):
            chosen = " (chosen)" if rate == tried["best"] else ""
            numbers = [np.inf if loss is None else loss for loss in losses]
            rows.append([kind, f"{rate:g}{chosen}", f"{np.mean(numbers):.4f}", ", ".join(f"{loss:.4f}" for loss in numbers)])
    return ["models", "rate", "mean loss", "losses"], rows
