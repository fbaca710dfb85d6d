"""Figures of untie curves: final values against the untie step, and trajectories by policy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures

Line = tuple[np.ndarray, Sequence[float], Sequence[Sequence[float]]]  # x, y, band (low, high) of each


def plot_untie_curve(
    title: str,
    losses: Mapping[str, Line],
    independent: tuple[float, Sequence[float]],
    best: float | None,
    shares: Mapping[str, Line] | None,
    independent_share: float | None,
) -> Figure:
    """Plot the final loss against the untie step and, if given, the share of solved seeds in a panel below it.

    independent: mean and band of the baseline with independent tables, which is not a point of the curve. best: the Bayes
    loss.
    """
    rows = 1 if shares is None else 2
    figure, axes = figures.new_figure(rows, 1, 9.2, 3.6 * rows)
    above = axes[0, 0]
    above.axhline(independent[0], color="grey", linewidth=1.2, label="never tied, independent tables")
    if np.isfinite(independent[1]).all():
        above.axhspan(*independent[1], color="grey", alpha=0.15, linewidth=0)
    if best is not None:
        above.axhline(best, color="black", linewidth=1, linestyle="--", label="Bayes")
    _plot_bands(above, losses)
    above.set_ylabel(title)
    if shares is not None:
        below = axes[1, 0]
        below.axhline(independent_share, color="grey", linewidth=1.2)
        _plot_bands(below, shares)
        figures.percentages(below)
        below.set_ylabel("seeds that solve the task")
    figures.legend_below(figure, above, columns=3)
    return figure


def plot_over_untie_step(panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]], ylabel: str) -> Figure:
    """Plot one panel per title and one line (x, y) per name, with a logarithmic y axis and a dotted line at 1."""
    figure, axes = figures.grid(len(panels), 2, 4.2, 2.9, below=0.3)
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        for number, (name, (x, y)) in enumerate(curves.items()):
            panel.plot(x, y, "o-", color=figures.SERIES[number % len(figures.SERIES)], linewidth=1.4, markersize=3, label=name)
        panel.axhline(1, color="black", linewidth=0.8, linestyle=":")
        panel.set_title(title)
        panel.set_ylabel(ylabel)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        panel.yaxis.set_minor_formatter(_between(*panel.get_ylim()))
        figures.thousands(panel)
        panel.set_xlabel("untied at step")
    figures.legend_below(figure, axes[0], columns=3)
    return figure


def plot_trajectories(
    steps: np.ndarray, panels: Mapping[str, Mapping[str, np.ndarray]], ylabel: str, best: float | None
) -> Figure:
    """Plot one panel per policy and one line `[record]` per untie step, darker if later, without the first record."""
    figure, axes = figures.grid(len(panels), 2, 4.2, 2.9, below=0.3)
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        colours = mpl.colormaps["viridis_r"](np.linspace(0.05, 1, len(curves)))
        for colour, (name, values) in zip(colours, curves.items(), strict=True):
            panel.plot(steps[1:], values[1:], color=colour, linewidth=1.2, label=name)
        if best is not None:
            panel.axhline(best, color="black", linewidth=1, linestyle="--")
        panel.set_title(title)
        panel.set_ylabel(ylabel)
        figures.thousands(panel)
    figures.legend_below(figure, axes[0])
    return figure


def _plot_bands(axes: Axes, lines: Mapping[str, Line]) -> None:
    """Plot lines with bars for their bands, shifted slightly so that the bars do not overlap."""
    for number, (name, (x, y, bands)) in enumerate(lines.items()):
        low, high = np.array(bands, dtype=float).T
        shift = (number - (len(lines) - 1) / 2) * 0.008 * np.ptp(x)
        inside = np.r_[0, np.full(len(x) - 2, shift), 0]
        colour = figures.SERIES[number % len(figures.SERIES)]
        axes.plot(x + inside, y, "o-", color=colour, linewidth=1.6, markersize=3.5, label=name)
        axes.vlines(x + inside, low, high, color=colour, linewidth=1, alpha=0.6)
    figures.thousands(axes)
    axes.set_xlabel("untied at step")


def _between(low: float, high: float) -> Callable[[float, Any], str]:
    """Return the formatter of minor ticks of a logarithmic axis, which labels more of them if the axis spans less."""
    labelled = "25" if high > 4 * low else "23456789"
    return lambda y, _: f"{y:g}" if f"{y:e}"[0] in labelled else ""
