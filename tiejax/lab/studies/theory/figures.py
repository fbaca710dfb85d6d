"""The figure of a theory check, from results.json: relative distances of the pairs while the loss is minimised."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Plot
from tiejax.statistics.arms import ARMS

SMALLEST = 1e-8  # relative distances below are drawn here
CAPTION = (
    "Relative distance of each pair of spellings in the input table while L-BFGS minimises the exact training loss without "
    "weight decay, one line per member, from the end of the run (left) on. By the theorem it is 0 at an optimum, if "
    "the reading map is injective."
)


def plot_all(results: Mapping[str, Any]) -> list[Plot]:
    """Plot the relative input distances of all pairs along the minimisation, one panel per arm; no figure without pairs."""
    if not results["pairs"]:
        return []
    figure, axes = figures.new_figure(1, len(ARMS), 4.6 * len(ARMS), 3.2, share_y=True)
    for panel, arm in zip(axes[0], ARMS, strict=True):
        for pair, colour in zip(results["pairs"], figures.SERIES, strict=False):
            for number, member in enumerate(results["members"][arm]):
                values = np.maximum(member["measures"][f"input/{pair}/relative"], SMALLEST)
                label = f"{pair} pair" if number == 0 else None
                panel.plot(np.add(member["path"], 1), values, color=colour, alpha=0.6, linewidth=1, label=label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(arm)
        panel.set_xlabel("iteration + 1")
    axes[0, 0].set_ylabel("relative distance")
    fullest = max(range(len(ARMS)), key=lambda arm: len(results["members"][ARMS[arm]]))
    figures.legend_below(figure, axes[0, fullest])
    return [Plot("paths", CAPTION, figure)]
