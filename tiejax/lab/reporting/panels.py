"""The three panels of Bertolotti and Cazzola (ICML 2024), one per table: untied input, untied output, tied."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Curves

# title of a panel -> (table, index of the arm)
PANELS = {"untied, input": ("input", 0), "untied, output": ("output", 0), "tied": ("input", 1)}


def plot_three_panels(
    steps: np.ndarray, panels: Mapping[str, Curves], ylabel: str, colours: Mapping[str, str], relative: bool = False
) -> Figure:
    """Plot the paper's three panels with every seed: distance of each pair over steps, by table. colours: by pair."""
    figure, axes = figures.new_figure(1, len(panels), 3.4 * len(panels), 3.1, share_y=True)
    for panel, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, values in curves.items():
            figures.plot_seeds(panel, steps, values, colours[name], name)
        panel.set_title(title)
        panel.tick_params(which="both", labelleft=True)  # also readable when panels are shown one below the other
        figures.thousands(panel)
        if relative:
            panel.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes[0, 0].set_ylabel(ylabel)
    if relative:
        axes[0, 0].set_yscale("log")
        axes[0, 0].yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes[0, 0].yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")
    else:
        axes[0, 0].set_ylim(bottom=0)
    figures.legend_below(figure, axes[0, 0])
    return figure


def plot_three_panels_published(
    steps: np.ndarray, panels: Mapping[str, Curves], colours: Mapping[str, str], every: int = 1000, top: float = 4
) -> Figure:
    """Plot the three panels in the paper's style: mean and 95 % band over seeds (or pairs), y from 0 to `top`.

    The band is mean +- 1.96 standard errors, from a normal approximation. Only multiples of `every` steps are shown.
    """
    figure, axes = figures.new_figure(1, len(panels), 3.4 * len(panels), 3.0, share_y=True)
    shown_records = np.flatnonzero(steps % every == 0)
    for panel, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, values in curves.items():
            colour = colours[name]
            shown = values[:, shown_records]
            mean = shown.mean(0)
            half = 1.96 * shown.std(0, ddof=1) / np.sqrt(len(shown)) if len(shown) > 1 else np.zeros_like(mean)
            panel.fill_between(steps[shown_records], mean - half, mean + half, color=colour, alpha=0.25, linewidth=0)
            panel.plot(steps[shown_records], mean, color=colour, label=name)
        panel.set_title(title)
        panel.set_ylim(0, top)
        panel.tick_params(labelleft=True)
        figures.thousands(panel)
    axes[0, 0].set_ylabel("Euclidean distance")
    figures.legend_below(figure, axes[0, 0])
    return figure
