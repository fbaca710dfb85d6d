"""Drawing of the layer-tying figures: owner maps as coloured cells, methods side by side, agents over episodes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from tiejax.lab.reporting.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW, legend_below, new_figure, thousands

METHOD_COLOURS = {"untied": "black", "agent": ORANGE, "random-agent": PURPLE, "random-map": SKY, "found-map": GREEN}
STATIC_COLOURS = (BLUE, YELLOW, "#8C564B", "#999999", "#6A3D9A", "#A6B727")
MIB = 2**20


class Style(NamedTuple):
    """The line style of a method in all figures; fixed maps are dashed."""

    colour: str
    line: str
    width: float


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Return the style of each method: fixed for the known ones, assigned in order to fixed maps."""
    static = [name for name in methods if name not in METHOD_COLOURS]
    lines = ("--", ":", "-.")
    return {
        name: Style(METHOD_COLOURS[name], "-", 2.2)
        if name in METHOD_COLOURS
        else Style(
            STATIC_COLOURS[static.index(name) % len(STATIC_COLOURS)],
            lines[static.index(name) // len(STATIC_COLOURS) % len(lines)],
            1.6,
        )
        for name in methods
    }


def owner_colours(layers: int) -> ListedColormap:
    """Return one colour per layer, along the rainbow, with neighbours alternately light and dark."""
    colours = mpl.colormaps["turbo"](np.linspace(0.04, 0.96, layers))[:, :3]
    if layers > 6:
        colours[1::2] = 0.5 + 0.5 * colours[1::2]
        colours[0::2] *= 0.85
    return ListedColormap(colours)


def _norm(layers: int) -> BoundaryNorm:
    return BoundaryNorm(np.arange(layers + 1) - 0.5, layers)


def _every(layers: int, most: int) -> np.ndarray:
    """Return the layers to label on an axis: about `most` or fewer, at round intervals."""
    step = next(step for step in (1, 2, 4, 5, 10, 20, 50, 100, layers) if layers <= step * most)
    return np.arange(0, layers, step)


def maps_over_time(episode: np.ndarray, rows: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Plot owner maps `[episode, layer]` over episodes: a row of panels per name, a panel per title."""
    columns = max(len(row) for row in rows.values())
    layers = next(iter(next(iter(rows.values())).values())).shape[1]
    height = float(np.clip(0.9 + 0.11 * layers, 1.7, 4.2))
    figure, axes = new_figure(len(rows), columns, 1.6 + min(11.0, max(5.0, 3.3 * columns)), height * len(rows) + 0.3)
    colours, norm = owner_colours(layers), _norm(layers)
    edges = np.append(episode, episode[-1] + 1) - 0.5
    for panels_of_row, (name, row) in zip(axes, rows.items(), strict=True):
        for spare in panels_of_row[len(row) :]:
            spare.set_axis_off()
        for panel, (title, owner) in zip(panels_of_row, row.items(), strict=False):
            panel.pcolormesh(edges, np.arange(layers + 1) - 0.5, owner.T, cmap=colours, norm=norm, rasterized=True)
            panel.set_title(title)
            panel.set_yticks(_every(layers, 12))
            panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
            panel.grid(visible=False)
        panels_of_row[0].set_ylabel(f"{name}\nlayer")
    for panel in axes[-1]:
        panel.set_xlabel("episode")
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, ticks=_every(layers, 12), aspect=30 * len(rows), pad=0.01)
    bar.set_label("copies layer")
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.grid(visible=False)
    return figure


def map_cells(rows: Sequence[tuple[str, Sequence[int]]]) -> Figure:
    """Plot owner maps as rows of coloured cells with the number of the owner; rows: (label, owner of every layer)."""
    owner = np.array([values for _, values in rows])
    layers = owner.shape[1]
    figure, axes = new_figure(1, 1, 2.0 + max(0.24 * layers, 2.5), 0.5 + 0.23 * len(rows))
    panel, colours, norm = axes[0, 0], owner_colours(layers), _norm(layers)
    panel.pcolormesh(owner, cmap=colours, norm=norm, edgecolors="white", linewidth=0.8)
    size = 8 if layers <= 24 else 6.5
    for row, column in np.ndindex(owner.shape):
        red, green, blue, _ = colours(norm(owner[row, column]))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.45 else "white"
        # Keep thousands of texts out of the layout, which would measure each of them.
        panel.text(
            column + 0.5, row + 0.52, str(owner[row, column]), ha="center", va="center", fontsize=size, color=ink
        ).set_in_layout(False)
    panel.set_yticks(np.arange(len(rows)) + 0.5, [label for label, _ in rows])
    panel.set_xticks(_every(layers, 48) + 0.5, [str(layer) for layer in _every(layers, 48)], fontsize=size)
    panel.invert_yaxis()
    panel.set_xlabel("layer")
    panel.tick_params(length=0)
    panel.grid(visible=False)
    for side in panel.spines.values():
        side.set_visible(False)
    return figure


def _round_numbers(axes: Axes, low: float, high: float) -> None:
    """Make the y axis logarithmic from low to high, with round tick labels even in a narrow range."""
    axes.set_yscale("log")
    if high > low:
        axes.set_ylim(low * (low / high) ** 0.04, high * (high / low) ** 0.04)
    if high < 8 * low:
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_minor_formatter(lambda y, _: f"{y:,g}" if f"{y:e}"[0] in "235" else "")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")


def learning(steps: np.ndarray, loss: Mapping[str, np.ndarray], seconds: Mapping[str, np.ndarray]) -> Figure:
    """Plot perplexity over steps and over seconds of training; loss: in nats by method, `[seed, validation]`.

    Thin: every seed; thick: the mean over seeds, in nats and in seconds. Values far above all final ones lie outside the panel;
    the first record, of untrained models, is not plotted.
    """
    figure, axes = new_figure(1, 2, 11.0, 4.8, share_y=True)
    over_steps, over_time = axes[0]
    for name, style in styles(list(loss)).items():
        later = loss[name][:, 1:]
        for panel, x in ((over_steps, np.broadcast_to(steps[1:], later.shape)), (over_time, seconds[name][:, 1:])):
            panel.plot(x.T, np.exp(later.T), color=style.colour, alpha=0.3, linewidth=0.6)
            panel.plot(x.mean(0), np.exp(later.mean(0)), style.line, color=style.colour, linewidth=style.width, label=name)
    every = np.exp(np.concatenate([values[:, 1:] for values in loss.values()]))
    if every.size:
        # The large losses of the first steps would hide later differences of a few percent.
        _round_numbers(over_steps, every.min(), min(every.max(), max(2.5 * every.min(), 1.1 * every[:, -1].max())))
    over_steps.set_ylabel("validation perplexity")
    over_steps.set_title("over steps")
    thousands(over_steps)
    over_time.set_title("over time")
    over_time.set_xlabel("seconds of training")
    over_time.set_xlim(left=0)
    over_time.tick_params(labelleft=False)
    legend_below(figure, over_steps, columns=6)
    return figure


def methods(panels: Mapping[str, Mapping[str, Sequence[float]]], from_zero: Sequence[str]) -> Figure:
    """Plot a panel per measure with a row per method, a dot per seed, a bar for the mean; from_zero: panels that start at 0."""
    names = list(next(iter(panels.values())))
    style_of = styles(names)
    figure, axes = new_figure(1, len(panels), 3.7 * len(panels), 0.9 + 0.3 * len(names), share_y=True)
    for panel, (title, values) in zip(axes[0], panels.items(), strict=True):
        for row, name in enumerate(names):
            seeds = np.array(values[name], dtype=float)
            panel.plot(seeds, np.full(len(seeds), row), "o", color=style_of[name].colour, alpha=0.5, markersize=5)
            panel.vlines(seeds.mean(), row - 0.36, row + 0.36, color=style_of[name].colour, linewidth=2.5)
        panel.set_title(title, fontsize=10)
        every = np.concatenate([np.array(seeds, dtype=float) for seeds in values.values()])
        if title in from_zero and (every > 0).any():
            panel.set_xlim(0, 1.1 * np.nanmax(every))
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].set_ylim(len(names) - 0.4, -0.6)
    return figure


MARKERS = "osD^vPX*<>hpd8H1234"
CLUSTER, APART = 1.02, 1.016  # methods whose bytes differ by less than this factor are drawn this factor apart


def bytes_against_loss(points: Mapping[str, tuple[np.ndarray, np.ndarray]], reference: str | None) -> Figure:
    """Plot a dot per seed and a bar for the mean of each method.

    points: method -> bytes and losses, `[seed]` each. reference: the method whose mean loss is a dashed line. Methods with
    almost equal bytes are drawn side by side.
    """
    figure, axes = new_figure(1, 1, 8.5, 5.2)
    panel, style_of = axes[0, 0], styles(list(points))
    shift = side_by_side({name: float(np.mean(size)) for name, (size, _) in points.items()})
    for number, (name, (size, loss)) in enumerate(points.items()):
        x, colour = size / MIB * shift[name], style_of[name].colour
        panel.plot(x, loss, MARKERS[number % len(MARKERS)], color=colour, alpha=0.55, markersize=5, label=name)
        middle = float(np.mean(x))
        panel.hlines(loss.mean(), middle / APART**0.5, middle * APART**0.5, color=colour, linewidth=2.5)
    if reference is not None:
        panel.axhline(points[reference][1].mean(), color="black", linestyle="--", linewidth=0.8)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("parameters (MiB), logarithmic")
    panel.set_ylabel("test loss (nats per token)")
    legend_below(figure, panel, columns=4)
    return figure


def side_by_side(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the factor by which each method is moved along a logarithmic axis, so that almost equal sizes do not overlap."""
    shift: dict[str, float] = {}
    left = sorted(sizes, key=lambda name: sizes[name])
    while left:
        cluster = [name for name in left if sizes[name] <= CLUSTER * sizes[left[0]]]
        shift |= {name: APART ** (place - (len(cluster) - 1) / 2) for place, name in enumerate(cluster)}
        left = left[len(cluster) :]
    return shift


def over_episodes(episode: np.ndarray, panels: Mapping[str, Mapping[str, np.ndarray]], logarithmic: Sequence[str]) -> Figure:
    """Plot a panel per measure over episodes: the seeds of each method `[seed, episode]` thin, their mean thick."""
    figure, axes = new_figure(2, -(-len(panels) // 2), 9.6, 5.4)
    for spare in axes.flat[len(panels) :]:
        spare.set_axis_off()
    for panel, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        for name, values in curves.items():
            colour = styles([name])[name].colour
            panel.plot(episode, values.T, color=colour, alpha=0.4, linewidth=0.7)
            panel.plot(episode, values.mean(0), color=colour, linewidth=2, label=name)
        every = np.concatenate([values.ravel() for values in curves.values()])
        if title in logarithmic and (every > 0).any():
            _round_numbers(panel, every[every > 0].min(), every.max())
        panel.set_title(title)
        panel.set_xlabel("episode")
    legend_below(figure, axes.flat[0])
    return figure
