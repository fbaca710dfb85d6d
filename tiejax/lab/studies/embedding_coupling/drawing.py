"""Drawing of the figures of the study of embedding shapes, from arrays."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import BLUE, GREEN, ORANGE, SERIES

Seeds = np.ndarray  # one value per seed
GREY = "#888888"


class Point(NamedTuple):
    """A shape in a plot: its name, its x coordinate, and its scores and those of its control, one per seed."""

    name: str
    x: float
    pretrained: Seeds
    control: Seeds


def scores_by_parameters(points: Sequence[Point]) -> Figure:
    """Plot the scores of every shape and of its control in rows, sorted by parameters in fine-tuning with the most on top."""
    figure, axes = figures.new_figure(1, 1, 7.2, 0.36 * len(points) + 1.6)
    panel = axes[0, 0]
    rows = sorted(points, key=lambda point: (point.x, point.pretrained.mean()))
    for row, point in enumerate(rows):
        panel.plot(
            point.control.mean(), row - 0.16, "x", color=GREY, markersize=6, label=None if row else "control: not pre-trained"
        )
        panel.plot(point.pretrained, np.full(len(point.pretrained), row + 0.16), "|", color=BLUE, markersize=7, alpha=0.6)
        panel.plot(point.pretrained.mean(), row + 0.16, "o", color=BLUE, markersize=6, label=None if row else "pre-trained")
    panel.set_yticks(range(len(rows)), [f"{point.name}, {_parameters(point.x)}" for point in rows])
    panel.set_xlabel("score: accuracy on test")
    figures.legend_below(figure, panel)
    return figure


def _parameters(number: float) -> str:
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number / 1e3:.0f}k"


def over_output_width(panels: Mapping[str, Sequence[Point]]) -> Figure:
    """Plot a panel per measure against E_out: seeds thin, their median thick, the control in grey."""
    figure, axes = figures.grid(len(panels), 3, 3.4, 3.0, below=0.3)
    for panel, (title, points) in zip(axes, panels.items(), strict=True):
        widths = [point.x for point in points]
        values = np.stack([point.pretrained for point in points], axis=1)
        figures.plot_seeds(panel, np.array(widths), values, BLUE, "pre-trained")
        controls = [point.control for point in points]
        if all(len(control) for control in controls):
            figures.plot_seeds(panel, np.array(widths), np.stack(controls, axis=1), GREY, "control: not pre-trained")
        panel.set_xscale("log", base=2)
        panel.set_xticks(widths, [f"{width:g}" for width in widths])
        panel.minorticks_off()
        panel.set_xlabel("width of the output embedding, E_out")
        panel.set_title(title)
    figures.legend_below(figure, axes[0])
    return figure


def dropped_layers(curves: Mapping[str, Mapping[int, Seeds]], control: float) -> Figure:
    """Plot the score against the number of remaining layers, a line per shape: means over seeds."""
    figure, axes = figures.new_figure(1, 1, 7.2, 3.8)
    panel = axes[0, 0]
    for number, (name, by_left) in enumerate(curves.items()):
        left = sorted(by_left)
        means = [by_left[layers].mean() for layers in left]
        style = "-" if number < len(SERIES) else "--"
        panel.plot(left, means, style, marker="o", color=SERIES[number % len(SERIES)], label=name, markersize=4)
    panel.axhline(control, color=GREY, linewidth=1, linestyle=":")
    panel.annotate(
        "control: not pre-trained", (1, control), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
    )
    panel.set_xticks(sorted({layers for by_left in curves.values() for layers in by_left}))
    panel.set_xlabel("layers left")
    panel.set_ylabel("accuracy on test")
    figures.legend_below(figure, panel)
    return figure


def by_layer(panels: Mapping[str, Mapping[str, np.ndarray]], controls: Mapping[str, np.ndarray], ylabel: str) -> Figure:
    """Plot curves over layers, `[seed, layer]` by shape, a panel per title. controls: means over shapes, by panel."""
    figure, axes = figures.grid(len(panels), 2, 4.6, 3.2, below=0.4)
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        for number, (name, values) in enumerate(curves.items()):
            style = "-" if number < len(SERIES) else "--"
            layers = np.arange(values.shape[1])
            panel.plot(layers, values.mean(0), style, color=SERIES[number % len(SERIES)], label=name, marker="o", markersize=3)
        panel.plot(np.arange(len(controls[title])), controls[title], ":", color=GREY, label="control: not pre-trained")
        panel.set_xlabel("layer (0: before the first)")
        panel.set_ylabel(ylabel)
        panel.set_title(title)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    figures.legend_below(figure, axes[0])
    return figure


def word_similarity(tables: Mapping[str, Mapping[str, Seeds]]) -> Figure:
    """Plot the correlations of the tables of each shape: every seed, and the mean as a bar."""
    figure, axes = figures.new_figure(1, 1, 7.2, 3.4)
    panel = axes[0, 0]
    for column, by_table in enumerate(tables.values()):
        for table, colour, side in (("input", BLUE, -0.18), ("output", ORANGE, 0.18)):
            if table in by_table:
                values = by_table[table]
                at = column + (side if "output" in by_table else 0)
                panel.plot(np.full(len(values), at), values, "o", color=colour, alpha=0.5, markersize=3)
                panel.hlines(
                    values.mean(), at - 0.14, at + 0.14, color=colour, linewidth=2.5, label=table if column == 1 else None
                )
    panel.set_xticks(range(len(tables)), list(tables), rotation=30, ha="right")
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set_ylabel("correlation with human judgement")
    handles = [panel.plot([], [], color=colour, linewidth=2.5)[0] for colour in (BLUE, ORANGE)]
    figure.legend(handles, ["input embedding", "output embedding"], loc="outside lower center", ncols=2, frameon=False)
    return figure


def pretraining_curves(step: np.ndarray, losses: Mapping[str, np.ndarray], entropy: float) -> Figure:
    """Plot the validation loss `[seed, record]` of each shape over steps, as means over seeds, and the unigram entropy."""
    figure, axes = figures.new_figure(1, 1, 7.2, 3.8)
    panel = axes[0, 0]
    for number, (name, values) in enumerate(losses.items()):
        style = "-" if number < len(SERIES) else "--"
        panel.plot(step, values.mean(0), style, color=SERIES[number % len(SERIES)], label=name)
    panel.axhline(entropy, color=GREEN, linewidth=1, linestyle=":")
    panel.annotate("unigram entropy", (1, entropy), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    shown = np.concatenate([values[:, 1:].ravel() for values in losses.values()])
    panel.set_ylim(min(shown.min(), entropy) - 0.1, max(np.quantile(shown, 0.98), entropy) + 0.2)
    figures.thousands(panel)
    panel.set_ylabel("validation loss (nats per masked token)")
    figures.legend_below(figure, panel)
    return figure
