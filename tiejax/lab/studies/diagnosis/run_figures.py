"""The figure of a run's diagnosis, from results.json."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from tiejax.geometry.equivalence import THRESHOLD
from tiejax.lab.reporting import figures
from tiejax.lab.reporting.plot import Plot

SHOWN = 6  # arms in a figure
# Positions in a panel, and the case of the distributional hypothesis (DH) there.
CASES = (
    (0.02, 0.97, "DH fails:\nsame meaning"),
    (0.98, 0.97, "DH holds:\ndifferent"),
    (0.98, 0.41, "DH fails:\nsame use"),
    (0.02, 0.41, "DH holds:\nsame"),
)


def plot_all(results: Mapping[str, Any]) -> list[Plot]:
    """Plot the distances of each set of pairs in each arm, as medians over pairs and seeds."""
    panels = {
        name: {
            row["set"]: (row["semantic_distance"], row["conditional_distance"])
            for row in rows
            if row["semantic_distance"] is not None and row["conditional_distance"] is not None
        }
        for name, rows in list(results["equivalence"].items())[:SHOWN]
    }
    return [
        Plot(
            "equivalence",
            "Effect of swapping two symbols on the predictions, in the input (semantic distance) and in the output "
            "(conditional distance): mean Jensen-Shannon divergence, medians over pairs and seeds. The distributional "
            "hypothesis (DH) says that both are small or both are large.",
            plot_equivalences(panels),
        )
    ]


def plot_equivalences(panels: Mapping[str, Mapping[str, tuple[float, float]]]) -> Figure:
    """Plot conditional against semantic distance (nats) of the sets of pairs, one panel per arm, with lines between cases."""
    figure, axes = figures.grid(len(panels), 3, 3.6, 3.4, below=0.3)
    for panel, (title, sets) in zip(axes, panels.items(), strict=True):
        for number, (name, (semantic, conditional)) in enumerate(sets.items()):
            colour = figures.SERIES[number % len(figures.SERIES)]
            panel.plot(semantic, conditional, "o", color=colour, markersize=8, label=name)
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
    return figure
