"""The figures of a run on planted text, with captions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.comparison.figures import over_seeds
from tiejax.lab.comparison.segments import step_at
from tiejax.lab.reporting.figures import GREEN, PURPLE, SKY, grid, legend_below, new_figure, thousands
from tiejax.lab.reporting.plot import Plot
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.claims import curve
from tiejax.lab.studies.causal_untying.figures import plot_row
from tiejax.lab.studies.causal_untying.planted_claims import TABLES, Planted
from tiejax.text.planted_pairs import CHOICES

COLOURS = {plan.TIED: "grey", plan.untied_at(plan.EARLY): GREEN, plan.untied_at(plan.LATE): PURPLE, plan.NEVER_INDEPENDENT: SKY}


def plot_all(planted: Planted, results: Mapping[str, Any]) -> list[Plot]:
    """Return all figures."""
    return [plot_distances(planted, list(results["arms"])), plot_excess(results["arms"])]


def plot_distances(planted: Planted, arms: list[str]) -> Plot:
    """Plot the distances of all kinds of pairs in both tables over training, relative to those at the first untie."""
    kinds = list(dict.fromkeys(planted.kinds))
    figure, axes = new_figure(len(TABLES), len(kinds), 2.5 * len(kinds), 5.4)
    for row, table in zip(axes, TABLES, strict=True):
        relative_of = {arm: planted.relative(arm, table) for arm in arms}
        for panel, kind in zip(row, kinds, strict=True):
            for arm, (step, relative) in relative_of.items():
                panel.plot(
                    step, over_seeds(np.nanmean, relative[kind]), color=COLOURS.get(arm, "black"), linewidth=1.6, label=arm
                )
            for fork in curve(dict.fromkeys(arms, np.zeros(0)))[0][:-1]:
                panel.axvline(step_at(fork, planted.steps), color="black", linewidth=0.6, linestyle=":")
            panel.set_title(f"{kind}, {table} table", fontsize=9)
            thousands(panel)
        row[0].set_ylabel(f"distance / that at {plan.EARLY}")
    legend_below(figure, axes[0, 0])
    return Plot(
        "planted_distances",
        f"Distance of the two symbols of a pair over training, relative to that at {plan.EARLY} of the run: means over pairs "
        "and seeds. Tied models have one table, shown in both rows. Dotted: the steps of unties.",
        figure,
    )


def plot_excess(arms: Mapping[str, Mapping[str, Any]]) -> Plot:
    """Plot the final excess loss of the choice between the symbols of a pair, by kind of pair and arm."""
    figure, panels = grid(len(CHOICES), 5, 2.6, 2.6)
    for number, (panel, kind) in enumerate(zip(panels, CHOICES, strict=True)):
        for place, (arm, row) in enumerate(arms.items()):
            values, colour = np.array(row["excess"][kind], float), COLOURS.get(arm, "black")
            plot_row(panel, place, values, colour)
        panel.set_yticks(range(len(arms)), list(arms) if number == 0 else [""] * len(arms), fontsize=8)
        panel.set_ylim(len(arms) - 0.5, -0.5)
        panel.set_xlim(0, 1.08 * panel.get_xlim()[1])
        panel.set_title(kind, fontsize=10)
    figure.supxlabel("loss of the choice - the least possible (nats)", fontsize=9)
    return Plot(
        "planted_excess",
        "Final loss of the choice between the two symbols of a pair less the least possible loss, by kind of pair: a dot per "
        "seed, bars: means of each arm. cipher: a word or its cipher, which is certain given the last marker.",
        figure,
    )
