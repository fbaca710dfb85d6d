"""Figures shared by several studies, in the project's style, and their PNG and PDF files."""

import functools
import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, Formatter, FuncFormatter

from tiejax.system.files import naming_file
from tiejax.system.visible import visible_lines

# Okabe and Ito's palette, distinguishable with colour vision deficiency.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SKY, YELLOW, PURPLE = "#56B4E9", "#E69F00", "#CC79A7"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
ARM_COLOURS = {"untied": BLUE, "tied": ORANGE}
RC: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 150,
}

BOXES = "Panels"  # key of the panels' boxes in the metadata of a PNG
MARGIN = 6  # pixels around a panel's box

MOST_LINES, MOST_POINTS = 64, 2000  # maximum number of seeds drawn in a panel, and (roughly) of records per seed
Curves = Mapping[str, np.ndarray]  # name -> [seed, record]
# The three panels of Bertolotti and Cazzola (ICML 2024), one per table: title -> (table, index of the arm).
PANELS = {"untied, input": ("input", 0), "untied, output": ("output", 0), "tied": ("input", 1)}


class Plot(NamedTuple):
    """A figure with its file name and caption."""

    name: str
    caption: str
    figure: Figure


def new_figure(rows: int, columns: int, width: float, height: float, share_y: bool = False) -> tuple[Figure, np.ndarray]:
    """Return a figure and its axes `[rows, columns]`, in the project's style."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y, sharex=False)
    return figure, axes


def grid(number: int, columns: int, width: float, height: float, below: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure of `number` panels of width x height inches, at most `columns` per row, above `below` inches of space."""
    columns = min(columns, number)
    rows = -(-number // columns)
    figure, axes = new_figure(rows, columns, width * columns, height * rows + below)
    for spare in axes.flat[number:]:
        spare.set_axis_off()
    return figure, list(axes.flat[:number])


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write a figure as PNG and as PDF; return the path of the PNG. Raises OSError with the path."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending, content in drawn(figure).items():
        with naming_file(folder / f"{name}.{ending}"):
            (folder / f"{name}.{ending}").write_bytes(content)
    return folder / f"{name}.png"


def drawn(figure: Figure) -> dict[str, bytes]:
    """Draw a figure as PNG, with the boxes of its panels as metadata, and as PDF; return the files by their ending.

    They are drawn in memory, since matplotlib raises errors other than OSError if a disk is full.
    """
    png, pdf = io.BytesIO(), io.BytesIO()
    _show_as_written(figure)
    with mpl.rc_context(RC), warnings.catch_warnings():
        # A name may contain letters that the font lacks, which are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.set_dpi(RC["savefig.dpi"])
        figure.draw_without_rendering()
        # Laying out many panels takes longer than drawing them: keep the layout for both files.
        figure.set_layout_engine("none")
        figure.savefig(png, format="png", metadata={BOXES: json.dumps(panel_boxes(figure))})
        # Without a creation date, the same run writes the same file.
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
    return {"png": png.getvalue(), "pdf": pdf.getvalue()}


def _show_as_written(figure: Figure) -> None:
    """Make all text in a figure appear as it is: a name between dollar signs would be mathematics."""
    for text in figure.findobj(Text):
        text.set_text(_literal(text.get_text()))
    # The texts of tick labels are set when the figure is drawn, by formatters, which panels may share.
    for axis in {id(axis.major): axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)}.values():
        if isinstance(formatter := axis.get_major_formatter(), FixedFormatter | FuncFormatter):
            axis.set_major_formatter(functools.partial(_literal_tick, formatter))


def _literal_tick(formatter: Formatter, place: float, position: int | None) -> str:
    return _literal(formatter(place, position))


def _literal(text: str) -> str:
    return visible_lines(text).replace("$", r"\$")


def panel_boxes(figure: Figure) -> list[list[int]]:
    """Return [left, top, width, height] in pixels of each panel and of the legend, for pages that stack them.

    The list is empty for a figure of one panel, and for panels that share a colour bar or tick labels, since each would be
    incomplete by itself.
    """
    axes = [panel for panel in figure.axes if panel.axison]
    incomplete = [
        panel for panel in axes if panel.get_label() == "<colorbar>" or not panel.yaxis.get_tick_params().get("labelleft", True)
    ]
    if len(axes) < 2 or incomplete:
        return []
    _, height = figure.canvas.get_width_height()
    boxes = []
    for part in (*axes, *figure.legends):
        box = part.get_tightbbox()
        assert box is not None
        left, top = math.floor(box.x0) - MARGIN, math.floor(height - box.y1) - MARGIN
        boxes.append([left, top, math.ceil(box.x1) + MARGIN - left, math.ceil(height - box.y0) + MARGIN - top])
    return boxes


def drawn_seeds(number: int) -> np.ndarray:
    """Return the indices of the drawn seeds, out of `number`: all, or `MOST_LINES` evenly spaced ones."""
    return np.arange(number) if number <= MOST_LINES else np.linspace(0, number - 1, MOST_LINES).round().astype(int)


def drawn_records(number: int) -> np.ndarray:
    """Return the indices of the drawn records, out of `number`: all, or the first and at most `MOST_POINTS` more.

    Half of them are evenly spaced, for linear axes, and half geometrically, for logarithmic axes.
    """
    if number <= MOST_POINTS:
        return np.arange(number)
    half = MOST_POINTS // 2
    places = np.concatenate([[0], np.linspace(0, number - 1, half), np.geomspace(1, number - 1, half)])
    return np.unique(places.round().astype(int))


def plot_seeds(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """Plot seeds as thin lines and their median as a thick line; `values` is `[seed, record]`.

    At most `MOST_LINES` seeds and about `MOST_POINTS` records are drawn, which is noted in the panel; the median is over all
    seeds.
    """
    points = drawn_records(len(steps))
    shown = values if len(points) == len(steps) else values[:, points]
    drawn = shown[drawn_seeds(len(shown))]
    left_out = [
        f"{number:d} of {whole} {name}"
        for number, whole, name in ((len(drawn), len(shown), "seeds"), (len(points), len(steps), "records"))
        if whole > number
    ]
    if left_out and not axes.get_lines():
        note = ",\n".join(left_out) + " drawn"
        below = axes.annotate(note, (1, 0), (0, -33), "axes fraction", "offset points", fontsize=7, color="grey")
        below.set(horizontalalignment="right", verticalalignment="top")
    # Many seeds would otherwise add up to a solid block.
    alpha = float(np.clip(3 / len(drawn), 0.12, 0.5))
    axes.plot(steps[points], drawn.T, color=colour, alpha=alpha, linewidth=0.7)
    outline = [patheffects.withStroke(linewidth=3.5, foreground="white")]
    axes.plot(steps[points], np.median(shown, axis=0), color=colour, linewidth=2, label=label, zorder=3, path_effects=outline)


def percentages(axes: Axes) -> None:
    """Format the y axis as percentages, from 0 to 100 %."""
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g} %")


def thousands(axes: Axes) -> None:
    """Label steps from 1,000 on in thousands, such as 2k."""
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x >= 1000 else f"{x:g}")
    axes.set_xlabel("step")


def legend_below(figure: Figure, axes: Axes, columns: int = 5) -> None:
    """Add the legend of one panel below the whole figure, in at most `columns` columns."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False)


def plot_learning_curves(
    panels: Mapping[str, tuple[np.ndarray, Curves, float]], best_name: str = "Bayes", line: str = "--"
) -> Figure:
    """Plot one panel per measure, given as (steps, arm -> [seed, record], value), with a line at the value, the Bayes one."""
    figure, axes = grid(len(panels), 2, 4.6, 2.9, below=0.3)
    for panel, (title, (steps, curves, best)) in zip(axes, panels.items(), strict=True):
        for name, values in curves.items():
            plot_seeds(panel, steps, values, ARM_COLOURS[name], name)
        later = np.concatenate([values[:, drawn_records(len(steps))[1:]] for values in curves.values()])
        below = False
        if later.size:
            # The first record, of untrained models, would flatten the curves.
            low, high = np.nanmin([later.min(), best]), np.nanmax([later.max(), best])
            if high > low:
                panel.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
            below = bool(np.median(later) > best)
        if np.isfinite(best):
            panel.axhline(best, color="black", linewidth=1, linestyle=line)
            panel.annotate(
                f"{best_name} {best:.4f}",
                (1, best),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="top" if below else "bottom",
                fontsize=8,
            )
        panel.set_title(title)
        thousands(panel)
    legend_below(figure, axes[0])
    return figure


def plot_paired_values(measures: Mapping[str, Sequence[np.ndarray]], names: Sequence[str]) -> Figure:
    """Plot the final values `[seed]` of arms: one panel per measure, one line per seed, medians as bars."""
    places = range(len(names))
    figure, axes = grid(len(measures), 4, 1.25 * len(names), 2.8)
    for panel, (title, values) in zip(axes, measures.items(), strict=True):
        both = np.stack(values)
        panel.plot(places, both, color="grey", alpha=0.35, linewidth=0.8)
        for place, name in enumerate(names):
            colour = ARM_COLOURS.get(name, GREEN)
            panel.plot(np.full(both.shape[1], place), both[place], "o", color=colour, alpha=0.6, markersize=4)
            panel.hlines(np.median(both[place]), place - 0.2, place + 0.2, color=colour, linewidth=2.5)
        panel.set_xticks(places, names)
        panel.set_xlim(-0.4, len(names) - 0.6)
        panel.set_title(title, fontsize=8)
        panel.grid(visible=False, axis="x")
    return figure


def plot_three_panels(
    steps: np.ndarray, panels: Mapping[str, Curves], ylabel: str, colours: Mapping[str, str], relative: bool = False
) -> Figure:
    """Plot the paper's three panels with every seed: distance of each pair over steps, by table. colours: by pair."""
    figure, axes = new_figure(1, len(panels), 3.4 * len(panels), 3.1, share_y=True)
    for panel, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, values in curves.items():
            plot_seeds(panel, steps, values, colours[name], name)
        panel.set_title(title)
        panel.tick_params(which="both", labelleft=True)  # also readable when panels are shown one below the other
        thousands(panel)
        if relative:
            panel.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes[0, 0].set_ylabel(ylabel)
    if relative:
        axes[0, 0].set_yscale("log")
        axes[0, 0].yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes[0, 0].yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")
    else:
        axes[0, 0].set_ylim(bottom=0)
    legend_below(figure, axes[0, 0])
    return figure


def plot_three_panels_published(
    steps: np.ndarray, panels: Mapping[str, Curves], colours: Mapping[str, str], every: int = 1000, top: float = 4
) -> Figure:
    """Plot the three panels in the paper's style: mean and 95 % band over seeds (or pairs), y from 0 to `top`.

    The band is mean +- 1.96 standard errors, from a normal approximation. Only multiples of `every` steps are shown.
    """
    figure, axes = new_figure(1, len(panels), 3.4 * len(panels), 3.0, share_y=True)
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
        thousands(panel)
    axes[0, 0].set_ylabel("Euclidean distance")
    legend_below(figure, axes[0, 0])
    return figure
