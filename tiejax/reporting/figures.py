"""Figures of runs with many seeds: every seed is drawn, the median over it. Arrays in, PNG and PDF files out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SKY, YELLOW, PURPLE = "#56B4E9", "#E69F00", "#CC79A7"
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

Curves = Mapping[str, np.ndarray]  # name -> [seed, record]


def new_figure(rows: int, columns: int, width: float, height: float, share_y: bool = False) -> tuple[Figure, np.ndarray]:
    """Return a figure and its axes `[rows, columns]`, in the project's style."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y, sharex=False)
    return figure, axes


def grid(number: int, columns: int, width: float, height: float, below: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure of `number` panels, at most `columns` a row and each width x height inches, `below` inches under them."""
    columns = min(columns, number)
    rows = -(-number // columns)
    figure, axes = new_figure(rows, columns, width * columns, height * rows + below)
    for spare in axes.flat[number:]:
        spare.set_axis_off()
    return figure, list(axes.flat[:number])


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write a figure as PNG and PDF; return the path of the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(RC):
        figure.savefig(folder / f"{name}.png")
        # Arranging many panels takes longer than drawing them: once is enough.
        figure.set_layout_engine("none")
        # Without a creation date the same run gives the same file.
        figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
    return folder / f"{name}.png"


def plot_seeds(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """Draw every seed as a thin line and their median as a thick one; `values` is `[seed, record]`."""
    # Many seeds would otherwise add up to a solid block.
    alpha = float(np.clip(3 / len(values), 0.12, 0.5))
    axes.plot(steps, values.T, color=colour, alpha=alpha, linewidth=0.7)
    axes.plot(steps, np.median(values, axis=0), color=colour, linewidth=2, label=label)


def thousands(axes: Axes) -> None:
    """Write steps from a thousand on in thousands."""
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x >= 1000 else f"{x:g}")
    axes.set_xlabel("step")


def three_panels(
    steps: np.ndarray, panels: Mapping[str, Curves], ylabel: str, colours: Mapping[str, str], relative: bool = False
) -> Figure:
    """Draw the paper's three panels with every seed: distance of each pair over steps, per table. colours: by pair."""
    figure, axes = new_figure(1, len(panels), 3.4 * len(panels), 3.1, share_y=True)
    for one, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, values in curves.items():
            plot_seeds(one, steps, values, colours[name], name)
        one.set_title(title)
        thousands(one)
        if relative:
            one.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes[0, 0].set_ylabel(ylabel)
    if relative:
        axes[0, 0].set_yscale("log")
        axes[0, 0].yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes[0, 0].yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")
    else:
        axes[0, 0].set_ylim(bottom=0)
    legend_below(figure, axes[0, 0])
    return figure


def three_panels_published(
    steps: np.ndarray, panels: Mapping[str, Curves], colours: Mapping[str, str], every: int = 1000, top: float = 4
) -> Figure:
    """Draw the three panels as the paper prints them: mean and 95 % band over seeds (or pairs), y from 0 to `top`.

    The band is the normal one, mean +- 1.96 standard errors. Only multiples of `every` steps are shown.
    """
    figure, axes = new_figure(1, len(panels), 3.4 * len(panels), 3.0, share_y=True)
    kept = np.flatnonzero(steps % every == 0)
    for one, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, values in curves.items():
            colour = colours[name]
            shown = values[:, kept]
            mean = shown.mean(0)
            half = 1.96 * shown.std(0, ddof=1) / np.sqrt(len(shown)) if len(shown) > 1 else np.zeros_like(mean)
            one.fill_between(steps[kept], mean - half, mean + half, color=colour, alpha=0.25, linewidth=0)
            one.plot(steps[kept], mean, color=colour, label=name)
        one.set_title(title)
        one.set_ylim(0, top)
        thousands(one)
    axes[0, 0].set_ylabel("Euclidean distance")
    legend_below(figure, axes[0, 0])
    return figure


def _between(low: float, high: float) -> Callable[[float, Any], str]:
    """Return what a logarithmic axis writes between the powers of ten: more, the less it spans."""
    labelled = "25" if high > 4 * low else "23456789"
    return lambda y, _: f"{y:g}" if f"{y:e}"[0] in labelled else ""


def shades(colour: str, number: int) -> list[str]:
    """Return `number` shades of a colour, from itself towards white."""
    red, green, blue = mpl.colors.to_rgb(colour)
    lighter = [0.7 * k / number for k in range(number)]
    return [mpl.colors.to_hex((red + (1 - red) * t, green + (1 - green) * t, blue + (1 - blue) * t)) for t in lighter]


def curves_by_name(steps: np.ndarray, curves: Curves, ylabel: str, colours: Mapping[str, str]) -> Figure:
    """Draw `[seed, record]` curves in one panel, every seed and the median, y from 0."""
    figure, axes = new_figure(1, 1, 7.5, 3.0)
    for name, values in curves.items():
        plot_seeds(axes[0, 0], steps, values, colours[name], name)
    axes[0, 0].set_ylabel(ylabel)
    axes[0, 0].set_ylim(bottom=0)
    thousands(axes[0, 0])
    legend_below(figure, axes[0, 0])
    return figure


def strips(panels: Mapping[str, Curves], ylabel: str, colours: Mapping[str, str]) -> Figure:
    """Draw one panel a title and one strip of dots a name, the median as a bar; 1 is dotted. Values are `[pair]`."""
    figure, axes = new_figure(1, len(panels), 3.4 * len(panels), 3.3, share_y=True)
    for one, (title, strip) in zip(axes[0], panels.items(), strict=True):
        for place, (name, values) in enumerate(strip.items()):
            beside = np.linspace(-0.3, 0.3, len(values)) if len(values) > 1 else np.zeros(1)
            one.plot(place + beside, values, "o", color=colours[name], alpha=0.4, markersize=3.5, markeredgewidth=0, label=name)
            one.hlines(np.median(values), place - 0.38, place + 0.38, color=colours[name], linewidth=2.5)
        one.axhline(1, color="black", linewidth=0.8, linestyle=":")
        one.set_xticks([])
        one.set_title(title)
    axes[0, 0].set_ylabel(ylabel)
    axes[0, 0].set_ylim(bottom=0)
    legend_below(figure, axes[0, 0])
    return figure


def by_bucket(names: Sequence[str], measures: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Draw pairs of values by bucket, one column a measure: both above, their difference below.

    measures: (untied, tied), each `[seed, bucket]`; NaN where a bucket is empty. One dot a seed, bars: medians.
    """
    figure, axes = new_figure(2, len(measures), max(4.8, 0.9 * len(names)) * len(measures), 5.4)
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
        for (name, colour), shift, shown in zip(ARM_COLOURS.items(), (-0.18, 0.18), values, strict=True):
            _dots(above, places + shift, shown, colour, 0.14, name)
        _dots(below, places, tied - untied, GREEN, 0.3, "tied - untied")
        below.axhline(0, color="black", linewidth=0.8, linestyle=":")
        above.set_title(title)
        below.set_title(f"{title}, tied - untied")
        for one in (above, below):
            one.set_xticks(places, names)
            one.grid(visible=False, axis="x")
    legend_below(figure, axes[0, 0])
    return figure


def _dots(axes: Axes, places: np.ndarray, values: np.ndarray, colour: str, half: float, label: str) -> None:
    """Draw `[seed, place]` as dots and the median over seeds as bars."""
    axes.plot(
        np.broadcast_to(places, values.shape).ravel(), values.ravel(), "o", color=colour, alpha=0.5, markersize=4, label=label
    )
    medians = np.median(values, axis=0)
    axes.hlines(medians, places - half, places + half, color=colour, linewidth=2.5)


def legend_below(figure: Figure, axes: Axes, columns: int = 5) -> None:
    """Write the legend of one panel under the whole figure, in at most so many columns."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False)


def all_distances(steps: np.ndarray, tables: Curves, pairs: Sequence[str]) -> Figure:
    """Draw every pair's distance, one panel a pair, one colour a table; tables hold `[seed, record, pair]`."""
    figure, axes = grid(len(pairs), 7, 1.9, 1.8, below=0.4)
    for place, one in enumerate(axes):
        for colour, (name, values) in zip((BLUE, GREEN, ORANGE), tables.items(), strict=True):
            plot_seeds(one, steps, values[..., place], colour, name)
        one.set_title(pairs[place], fontsize=8)
        one.set_ylim(bottom=0)
        thousands(one)
        one.set_xlabel("")
    legend_below(figure, axes[0])
    return figure


def learning_curves(panels: Mapping[str, tuple[np.ndarray, Curves, float]]) -> Figure:
    """Draw one panel a measure: (steps, arm -> [seed, record], Bayes value), with the Bayes value as a line."""
    figure, axes = grid(len(panels), 2, 4.6, 2.9, below=0.3)
    for one, (title, (steps, curves, best)) in zip(axes, panels.items(), strict=True):
        for name, values in curves.items():
            plot_seeds(one, steps, values, ARM_COLOURS[name], name)
        later = np.concatenate([values[:, 1:] for values in curves.values()])
        below = False
        if later.size:
            # The first record, of untrained models, would flatten all that follows.
            low, high = np.nanmin([later.min(), best]), np.nanmax([later.max(), best])
            if high > low:
                one.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
            below = bool(np.median(later) > best)
        if np.isfinite(best):
            one.axhline(best, color="black", linewidth=1, linestyle="--")
            one.annotate(
                f"Bayes {best:.4f}",
                (1, best),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="top" if below else "bottom",
                fontsize=8,
            )
        one.set_title(title)
        thousands(one)
    legend_below(figure, axes[0])
    return figure


def paired_values(measures: Mapping[str, tuple[np.ndarray, np.ndarray]], names: tuple[str, str]) -> Figure:
    """Draw final values in pairs: one panel a measure, one line a seed, the medians as bars."""
    figure, axes = grid(len(measures), 4, 2.5, 2.8)
    for one, (title, values) in zip(axes, measures.items(), strict=True):
        both = np.stack(values)
        one.plot([0, 1], both, color="grey", alpha=0.35, linewidth=0.8)
        for place, name in enumerate(names):
            colour = ARM_COLOURS[name]
            one.plot(np.full(both.shape[1], place), both[place], "o", color=colour, alpha=0.6, markersize=4)
            one.hlines(np.median(both[place]), place - 0.2, place + 0.2, color=colour, linewidth=2.5)
        one.set_xticks([0, 1], names)
        one.set_xlim(-0.4, 1.4)
        one.set_title(title, fontsize=8)
        one.grid(visible=False, axis="x")
    return figure


def _scatter(axes: Axes, x: np.ndarray, values: np.ndarray, filled: np.ndarray, colour: str, shift: float) -> None:
    """Draw `[x, seed]` as dots beside their x, filled where `filled`."""
    places = np.repeat((x + shift)[:, None], values.shape[1], axis=1)
    axes.scatter(places[filled], values[filled], s=12, color=colour, alpha=0.5, linewidths=0)
    axes.scatter(places[~filled], values[~filled], s=12, facecolors="none", edgecolors=colour, alpha=0.35, linewidths=0.7)


def dose_gap(bound: np.ndarray, gaps: Curves, solved: Curves) -> Figure:
    """Draw what each arm answers to each dose against what the theory asks; `[dose, seed]` by arm."""
    figure, axes = new_figure(1, len(gaps), 4.2 * len(gaps), 3.6, share_y=True)
    for one, (name, values) in zip(axes[0], gaps.items(), strict=True):
        _scatter(one, bound, values, solved[name], ARM_COLOURS[name], 0.0)
        medians = [np.median(row[mark]) if mark.any() else np.nan for row, mark in zip(values, solved[name], strict=True)]
        one.plot(bound, medians, color=ARM_COLOURS[name], linewidth=2)
        one.axline((0, 0), slope=1, color="black", linewidth=1, linestyle="--")
        one.set_title(name)
        one.set_xlabel("|ln(p / (1 - p))|")
        one.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("smallest |e1 - e2| |h|")
    return figure


def dose_cost(doses: np.ndarray, excess: Curves, solved: Curves) -> Figure:
    """Draw loss over Bayes by arm, the price of tying, and the share of seeds that solved, against the dose."""
    figure, axes = new_figure(2, 2, 8.4, 6.0)
    names = list(excess)
    for one, name in zip(axes[0], names, strict=True):
        _scatter(one, doses, excess[name], solved[name], ARM_COLOURS[name], 0.0)
        one.plot(doses, np.median(excess[name], axis=1), color=ARM_COLOURS[name], linewidth=2)
        one.set_title(f"loss over Bayes (nats), {name}")
    top = max(one.get_ylim()[1] for one in axes[0])
    for one in axes[0]:
        one.set_ylim(bottom=0, top=top)
    cost = excess[names[1]] - excess[names[0]]
    everywhere = np.ones_like(cost, dtype=bool)
    _scatter(axes[1, 0], doses, cost, everywhere, GREEN, 0.0)
    axes[1, 0].plot(doses, np.median(cost, axis=1), color=GREEN, linewidth=2)
    axes[1, 0].axhline(0, color="black", linewidth=0.8, linestyle=":")
    axes[1, 0].set_title("cost of tying (nats), tied - untied")
    for name in names:
        axes[1, 1].plot(doses, solved[name].mean(axis=1), "o-", color=ARM_COLOURS[name], label=name)
    axes[1, 1].set_title("share of seeds within .1 nat of Bayes")
    axes[1, 1].set_ylim(0, 1)
    axes[1, 1].legend(frameon=False)
    for one in axes.flat:
        one.set_xlabel("p")
    return figure


SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
Line = tuple[np.ndarray, Sequence[float], Sequence[Sequence[float]]]  # x, y, (low, high) of each


def _bands(axes: Axes, lines: Mapping[str, Line]) -> None:
    """Draw lines with bars of their intervals, a little beside each other so that all can be read."""
    for number, (name, (x, y, intervals)) in enumerate(lines.items()):
        low, high = np.array(intervals, dtype=float).T
        shift = (number - (len(lines) - 1) / 2) * 0.008 * np.ptp(x)
        inside = np.r_[0, np.full(len(x) - 2, shift), 0]
        colour = SERIES[number % len(SERIES)]
        axes.plot(x + inside, y, "o-", color=colour, linewidth=1.6, markersize=3.5, label=name)
        axes.vlines(x + inside, low, high, color=colour, linewidth=1, alpha=0.6)
    thousands(axes)
    axes.set_xlabel("untied at step")


def untie_curve(
    title: str,
    losses: Mapping[str, Line],
    independent: tuple[float, Sequence[float]],
    best: float | None,
    shares: Mapping[str, Line] | None,
    independent_share: float | None,
) -> Figure:
    """Draw the final loss over the untie step, and the share of solved seeds below it where there is one.

    independent: median and interval of the baseline that is no point of the curve. best: the Bayes value.
    """
    rows = 1 if shares is None else 2
    figure, axes = new_figure(rows, 1, 9.2, 3.6 * rows)
    above = axes[0, 0]
    above.axhline(independent[0], color="grey", linewidth=1.2, label="never tied, independent tables")
    if np.isfinite(independent[1]).all():
        above.axhspan(*independent[1], color="grey", alpha=0.15, linewidth=0)
    if best is not None:
        above.axhline(best, color="black", linewidth=1, linestyle="--", label="Bayes")
    _bands(above, losses)
    above.set_ylabel(title)
    if shares is not None:
        below = axes[1, 0]
        below.axhline(independent_share, color="grey", linewidth=1.2)
        _bands(below, shares)
        below.set_ylim(0, 1)
        below.set_ylabel("share of seeds that solve it")
    legend_below(figure, above, columns=3)
    return figure


def lines(panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]], ylabel: str) -> Figure:
    """Draw one panel a title, one line a name (x, y); 1 is dotted, y is logarithmic."""
    figure, axes = grid(len(panels), 2, 4.2, 2.9, below=0.3)
    for one, (title, curves) in zip(axes, panels.items(), strict=True):
        for number, (name, (x, y)) in enumerate(curves.items()):
            one.plot(x, y, "o-", color=SERIES[number % len(SERIES)], linewidth=1.4, markersize=3, label=name)
        one.axhline(1, color="black", linewidth=0.8, linestyle=":")
        one.set_title(title)
        one.set_ylabel(ylabel)
        one.set_yscale("log")
        one.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        one.yaxis.set_minor_formatter(_between(*one.get_ylim()))
        thousands(one)
        one.set_xlabel("untied at step")
    legend_below(figure, axes[0], columns=3)
    return figure


def by_untie_step(steps: np.ndarray, panels: Mapping[str, Mapping[str, np.ndarray]], ylabel: str, best: float | None) -> Figure:
    """Draw one panel a policy and one line an untie step, `[record]`, darker the later; the first record is left out."""
    figure, axes = grid(len(panels), 2, 4.2, 2.9, below=0.3)
    for one, (title, curves) in zip(axes, panels.items(), strict=True):
        colours = mpl.colormaps["viridis_r"](np.linspace(0.05, 1, len(curves)))
        for colour, (name, values) in zip(colours, curves.items(), strict=True):
            one.plot(steps[1:], values[1:], color=colour, linewidth=1.2, label=name)
        if best is not None:
            one.axhline(best, color="black", linewidth=1, linestyle="--")
        one.set_title(title)
        one.set_ylabel(ylabel)
        thousands(one)
    legend_below(figure, axes[0])
    return figure


def uses(
    steps: np.ndarray,
    ratios: Curves,
    cosines: Curves,
    published: Sequence[tuple[int, int, float]],
    by_bucket: Mapping[str, Sequence[float]],
    names: Sequence[str],
) -> Figure:
    """Draw the ratio of the gradients of both uses and their cosine over training, and the last ratio by bucket of rows.

    published: steps from, steps to, ratio. by_bucket: arm -> the median ratio of each bucket, called `names`.
    """
    figure, axes = new_figure(1, 3, 11.5, 3.3)
    first, second, third = axes[0]
    shown = np.where(steps > 0, steps, np.nan)
    for name, values in ratios.items():
        plot_seeds(first, shown, values, ARM_COLOURS[name], name)
        plot_seeds(second, shown, cosines[name], ARM_COLOURS[name], name)
    for number, (low, high, ratio) in enumerate(published):
        first.hlines(
            ratio, low, high, color="black", linewidth=1.5, linestyle="--", label=None if number else "OLMo-1B, published"
        )
    first.axhline(1, color="black", linewidth=0.8, linestyle=":")
    first.set_title("gradient of output use / input use")
    first.set_yscale("log")
    first.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    second.set_title("cosine of both")
    second.axhline(0, color="black", linewidth=0.8, linestyle=":")
    for one in (first, second):
        one.set_xscale("log")
        one.set_xlabel("step")
    places, width = np.arange(len(names)), 0.8 / len(by_bucket)
    for number, (name, heights) in enumerate(by_bucket.items()):
        third.bar(places + (number - (len(by_bucket) - 1) / 2) * width, heights, width, color=ARM_COLOURS[name])
    third.set_yscale("log")
    third.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    third.axhline(1, color="black", linewidth=0.8, linestyle=":")
    third.set_xticks(places, names, rotation=30 if len("".join(names)) > 30 else 0)
    third.grid(visible=False, axis="x")
    third.set_title("ratio at the end, by rows of the table")
    legend_below(figure, first)
    return figure


CASES = (
    (0.02, 0.97, "DH fails:\nsame meaning"),
    (0.98, 0.97, "DH holds:\ndifferent"),
    (0.98, 0.41, "DH fails:\nsame use"),
    (0.02, 0.41, "DH holds:\nsame"),
)


def equivalences(panels: Mapping[str, Mapping[str, tuple[float, float]]], threshold: float) -> Figure:
    """Draw semantic against conditional distance of each set of pairs, one panel an arm, with lines between the cases."""
    figure, axes = grid(len(panels), 3, 3.6, 3.4, below=0.3)
    for one, (title, sets) in zip(axes, panels.items(), strict=True):
        for number, (name, (semantic, conditional)) in enumerate(sets.items()):
            one.plot(semantic, conditional, "o", color=SERIES[number % len(SERIES)], markersize=8, label=name)
        one.axvline(threshold, color="black", linewidth=0.8, linestyle=":")
        one.axhline(threshold, color="black", linewidth=0.8, linestyle=":")
        one.set_xscale("symlog", linthresh=threshold / 4, linscale=0.5)
        one.set_yscale("symlog", linthresh=threshold / 4, linscale=0.5)
        one.set_xlim(-threshold / 20, 1)
        one.set_ylim(-threshold / 20, 1)
        for x, y, words in CASES:
            along = "left" if x < 0.5 else "right"
            one.text(x, y, words, transform=one.transAxes, fontsize=7, color="grey", ha=along, va="top")
        for axis in (one.xaxis, one.yaxis):
            axis.set_ticks([0, 0.01, 0.1, 1], ["0", ".01", ".1", "1"])
        one.set_title(title)
        one.set_xlabel("semantic distance (nats)")
        one.set_ylabel("conditional distance (nats)")
    legend_below(figure, axes[0])
    return figure
