"""Figures that EXor alone has: every pair of symbols, and doses. Arrays in, figures out."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Curves, Seeds


def plot_distance_grid(steps: np.ndarray, tables: Mapping[str, Seeds], pairs: Sequence[str]) -> Figure:
    """Plot every pair's distance, one panel a pair, one colour a table; tables hold `[..., pair]`."""
    figure, axes = figures.grid(len(pairs), 7, 1.9, 1.8, below=0.4)
    for place, panel in enumerate(axes):
        for colour, (name, seeds) in zip((figures.BLUE, figures.GREEN, figures.ORANGE), tables.items(), strict=True):
            of_pair = seeds._replace(drawn=seeds.drawn[..., place], median=seeds.median[..., place])
            figures.plot_seeds(panel, steps, of_pair, colour, name)
        panel.set_title(pairs[place], fontsize=8)
        panel.set_ylim(bottom=0)
        figures.thousands(panel)
        panel.set_xlabel("")
    figures.legend_below(figure, axes[0])
    return figure


def plot_dose_gap(bound: np.ndarray, gaps: Curves, solved: Curves) -> Figure:
    """Plot what each arm answers to each dose against what the theory asks; `[dose, seed]` by arm."""
    figure, axes = figures.new_figure(1, len(gaps), 4.2 * len(gaps), 3.6, share_y=True)
    for panel, (name, values) in zip(axes[0], gaps.items(), strict=True):
        _scatter(panel, bound, values, solved[name], figures.ARM_COLOURS[name])
        medians = [np.median(row[mark]) if mark.any() else np.nan for row, mark in zip(values, solved[name], strict=True)]
        panel.plot(bound, medians, color=figures.ARM_COLOURS[name], linewidth=2)
        panel.axline((0, 0), slope=1, color="black", linewidth=1, linestyle="--")
        panel.set_title(name)
        panel.set_xlabel("|ln(p / (1 - p))|")
        panel.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("smallest |e1 - e2| |h|")
    return figure


def plot_dose_cost(doses: np.ndarray, excess: Curves, solved: Curves) -> Figure:
    """Plot loss over Bayes by arm, the price of tying, and the share of seeds that solved, against the dose."""
    figure, axes = figures.new_figure(2, 2, 8.4, 6.0)
    names = list(excess)
    for panel, name in zip(axes[0], names, strict=True):
        _scatter(panel, doses, excess[name], solved[name], figures.ARM_COLOURS[name])
        panel.plot(doses, np.median(excess[name], axis=1), color=figures.ARM_COLOURS[name], linewidth=2)
        panel.set_title(f"loss over Bayes (nats), {name}")
    top = max(panel.get_ylim()[1] for panel in axes[0])
    for panel in axes[0]:
        panel.set_ylim(bottom=0, top=top)
    cost = excess[names[1]] - excess[names[0]]
    everywhere = np.ones_like(cost, dtype=bool)
    _scatter(axes[1, 0], doses, cost, everywhere, figures.GREEN)
    axes[1, 0].plot(doses, np.median(cost, axis=1), color=figures.GREEN, linewidth=2)
    axes[1, 0].axhline(0, color="black", linewidth=0.8, linestyle=":")
    axes[1, 0].set_title("cost of tying (nats), tied - untied")
    for name in names:
        axes[1, 1].plot(doses, solved[name].mean(axis=1), "o-", color=figures.ARM_COLOURS[name], label=name)
    axes[1, 1].set_title("share of seeds within .1 nat of Bayes")
    axes[1, 1].set_ylim(0, 1)
    axes[1, 1].legend(frameon=False)
    for panel in axes.flat:
        panel.set_xlabel("p")
    return figure


def _scatter(axes: Axes, x: np.ndarray, values: np.ndarray, filled: np.ndarray, colour: str) -> None:
    """Plot `[x, seed]` as dots beside their x, filled where `filled`."""
    places = np.repeat(x[:, None], values.shape[1], axis=1)
    axes.scatter(places[filled], values[filled], s=12, color=colour, alpha=0.5, linewidths=0)
    axes.scatter(places[~filled], values[~filled], s=12, facecolors="none", edgecolors=colour, alpha=0.35, linewidths=0.7)
