"""Axes of the figures of a text run: strips of pairs, token buckets, norms."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Curves


def plot_curves_by_name(steps: np.ndarray, curves: Curves, ylabel: str, colours: Mapping[str, str]) -> Figure:
    """Plot curves `[seed, record]` in one panel, every seed and the median, with y from 0."""
    figure, axes = figures.new_figure(1, 1, 7.5, 3.0)
    for name, values in curves.items():
        figures.plot_seeds(axes[0, 0], steps, values, colours[name], name)
    axes[0, 0].set_ylabel(ylabel)
    axes[0, 0].set_ylim(bottom=0)
    figures.thousands(axes[0, 0])
    figures.legend_below(figure, axes[0, 0])
    return figure


def plot_arms(values: Curves, ylabel: str) -> Figure:
    """Plot final values `[seed]` of each arm, with one line per seed and the means as bars."""
    figure, axes = figures.new_figure(1, 1, 4.2, 3.3)
    panel, by_arm = axes[0, 0], np.stack(list(values.values()))
    panel.plot(np.arange(len(by_arm)), by_arm, "o-", color="grey", alpha=0.5, linewidth=0.8, markersize=4)
    for place, mean in enumerate(by_arm.mean(axis=1)):
        panel.hlines(mean, place - 0.25, place + 0.25, color=figures.SERIES[place], linewidth=2.5)
    panel.set_xticks(range(len(by_arm)), list(values))
    panel.set_ylabel(ylabel)
    return figure


def plot_strips(panels: Mapping[str, Curves], ylabel: str, colours: Mapping[str, str]) -> Figure:
    """Plot a panel per title with a strip of dots `[pair]` per name, medians as bars, and a dotted line at 1."""
    figure, axes = figures.new_figure(1, len(panels), 3.4 * len(panels), 3.3, share_y=True)
    for panel, (title, strip) in zip(axes[0], panels.items(), strict=True):
        for place, (name, values) in enumerate(strip.items()):
            spread = np.linspace(-0.3, 0.3, len(values)) if len(values) > 1 else np.zeros(1)
            panel.plot(
                place + spread, values, "o", color=colours[name], alpha=0.4, markersize=3.5, markeredgewidth=0, label=name
            )
            panel.hlines(np.median(values), place - 0.38, place + 0.38, color=colours[name], linewidth=2.5)
        panel.axhline(1, color="black", linewidth=0.8, linestyle=":")
        panel.set_xticks([])
        panel.set_title(title)
    axes[0, 0].set_ylabel(ylabel)
    axes[0, 0].set_ylim(bottom=0)
    figures.legend_below(figure, axes[0, 0])
    return figure


def plot_by_bucket(names: Sequence[str], measures: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Plot untied and tied values by bucket, with their difference below; one column per measure.

    measures: (untied, tied) by title, each `[seed, bucket]`, NaN for an empty bucket. One dot per seed, bars: medians.
    """
    figure, axes = figures.new_figure(2, len(measures), max(4.8, 0.9 * len(names)) * len(measures), 5.4)
    places = np.arange(len(names))
    for column, (title, values) in enumerate(measures.items()):
        above, below = axes[:, column]
        untied, tied = values
        for seed in range(len(untied)):
            above.plot(
                np.stack([places - 0.18, places + 0.18]),
                np.stack([untied[seed], tied[seed]]),
                color="grey",
                alpha=0.3,
                linewidth=0.8,
            )
        for (name, colour), shift, shown in zip(figures.ARM_COLOURS.items(), (-0.18, 0.18), values, strict=True):
            _plot_dots(above, places + shift, shown, colour, 0.14, name)
        _plot_dots(below, places, tied - untied, figures.GREEN, 0.3, "tied - untied")
        below.axhline(0, color="black", linewidth=0.8, linestyle=":")
        above.set_title(title)
        below.set_title(f"{title}, tied - untied")
        for panel in (above, below):
            panel.set_xticks(places, names)
            panel.grid(visible=False, axis="x")
    figures.legend_below(figure, axes[0, 0])
    return figure


def _plot_dots(axes: Axes, places: np.ndarray, values: np.ndarray, colour: str, half: float, label: str) -> None:
    """Plot values `[seed, bucket]` as dots, and medians over seeds as bars; places: x coordinates of the buckets."""
    axes.plot(
        np.broadcast_to(places, values.shape).ravel(), values.ravel(), "o", color=colour, alpha=0.5, markersize=4, label=label
    )
    medians = np.median(values, axis=0)
    axes.hlines(medians, places - half, places + half, color=colour, linewidth=2.5)


def shades(colour: str, number: int) -> list[str]:
    """Return `number` shades of a colour, from the colour itself towards white."""
    red, green, blue = mpl.colors.to_rgb(colour)
    lighter = [0.7 * k / number for k in range(number)]
    return [mpl.colors.to_hex((red + (1 - red) * t, green + (1 - green) * t, blue + (1 - blue) * t)) for t in lighter]
