"""The figure of a run's diagnosis, from results.json."""

from collections.abc import Mapping
from typing import Any

from tiejax.geometry.equivalence import THRESHOLD
from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Plot

SHOWN = 6  # arms in a figure
# Positions in a panel, and the case of the distributional hypothesis (DH) there.
CASES = (
    (0.02, 0.97, "DH fails:\nsame meaning"),
    (0.98, 0.97, "DH holds:\ndifferent"),
    (0.98, 0.41, "DH fails:\nsame use"),
    (0.02, 0.41, "DH holds:\nsame"),
)
CAPTION = (
    "Effect of swapping two symbols on the predictions, in the input (semantic distance) and in the output (conditional "
    "distance): mean Jensen-Shannon divergence, medians over pairs and seeds. The distributional hypothesis (DH) says that "
    "both are small or both are large."
)


def plot_all(results: Mapping[str, Any]) -> list[Plot]:
    """Plot conditional against semantic distance (nats) of the sets of pairs, one panel per arm, with lines between cases."""
    arms = list(results["equivalence"].items())[:SHOWN]
    figure, axes = figures.grid(len(arms), 3, 3.6, 3.4, below=0.3)
    for panel, (title, sets) in zip(axes, arms, strict=True):
        measured = [row for row in sets if None not in (row["semantic_distance"], row["conditional_distance"])]
        for number, row in enumerate(measured):
            colour = figures.SERIES[number % len(figures.SERIES)]
            distances = row["semantic_distance"], row["conditional_distance"]
            panel.plot(*distances, "o", color=colour, markersize=8, label=row["set"])
        panel.axvline(THRESHOLD, color="black", linewidth=0.8, linestyle=":")
        panel.axhline(THRESHOLD, color="black", linewidth=0.8, linestyle=":")
        panel.set_xscale("symlog", linthresh=THRESHOLD / 4, linscale=0.5)
        panel.set_yscale("symlog", linthresh=THRESHOLD / 4, linscale=0.5)
        panel.set_xlim(-THRESHOLD / 20, 1)
        panel.set_ylim(-THRESHOLD / 20, 1)
        for x, y, words in CASES:
            along = "left" if x < 0.5 else "right"
            panel.text(x, y, words, transform=panel.transAxes, fontsize=7, color="grey", ha=along, va="top")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_ticks([0, 0.01, 0.1, 1], ["0", ".01", ".1", "1"])
        panel.set_title(title)
        panel.set_xlabel("semantic distance (nats)")
        panel.set_ylabel("conditional distance (nats)")
    figures.legend_below(figure, axes[0])
    return [Plot("equivalence", CAPTION, figure)]
