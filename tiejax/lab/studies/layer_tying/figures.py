"""The figures of a layer-tying run, with captions: losses over bytes and over training, owner maps and agents over episodes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import MaxNLocator, NullFormatter

from tiejax.lab.reporting import figures
from tiejax.lab.studies.layer_tying.analysis import Metrics

METHOD_COLOURS = {
    "untied": "black",
    "agent": figures.ORANGE,
    "random-agent": figures.PURPLE,
    "random-map": figures.SKY,
    "found-map": figures.GREEN,
}
STATIC_COLOURS = (figures.BLUE, figures.YELLOW, "#8C564B", "#999999", "#6A3D9A", "#A6B727")
MARKERS = "osD^vPX*<>hpd8H1234"
CLUSTER, APART = 1.02, 1.016  # methods whose bytes differ by less than this factor are drawn this factor apart
MIB = 2**20
MOST_SEEDS, MOST_TICKS = 6, 12  # panels of one row, and labelled layers

BIGRAM: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1, "label": "bigram"}

Rows = Sequence[Mapping[str, Any]]  # `methods` of results.json
Losses = Mapping[str, float]  # of a bigram model, by split


def plot_all(runs: Metrics, findings: Mapping[str, Any], bigram: Mapping[str, Any] | None = None) -> list[figures.Plot]:
    """Plot all figures of a run from the output of `analyse`; none if no seed stayed finite. bigram: of results.json."""
    if not findings["seeds"]:
        return []
    rows, losses = findings["methods"], None if bigram is None else bigram["losses"]
    return [
        plot_bytes(rows, losses),
        *([plot_tie_maps(runs)] if findings["agents"] else []),
        plot_learning(runs, losses),
        *([plot_agents(runs)] if findings["agents"] else []),
    ]


def plot_tie_maps(runs: Metrics) -> figures.Plot:
    """Plot the layer that each layer copies at the end of every episode: a row per agent, a panel per seed."""
    seeds, episode, owner = runs["seeds"][:MOST_SEEDS], runs["episode"], runs["episode_owner"]
    agents, columns, layers = len(owner), len(seeds), owner.shape[-1]
    height = float(np.clip(0.9 + 0.11 * layers, 1.7, 4.2))
    figure, axes = figures.new_figure(agents, columns, 1.6 + min(11.0, max(5.0, 3.3 * columns)), height * agents + 0.3)
    colours, norm = owner_colours(layers), BoundaryNorm(np.arange(layers + 1) - 0.5, layers)
    ticks = np.arange(0, layers, -(-layers // MOST_TICKS))
    edges = np.append(episode, episode[-1] + 1) - 0.5
    for panels, name, maps in zip(axes, runs["agents"], owner, strict=True):
        for panel, seed, of_seed in zip(panels, seeds, maps, strict=False):
            panel.pcolormesh(edges, np.arange(layers + 1) - 0.5, of_seed.T, cmap=colours, norm=norm, rasterized=True)
            panel.set_title(f"seed {seed}")
            panel.set_yticks(ticks)
            panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
            panel.grid(visible=False)
        panels[0].set_ylabel(f"{name}\nlayer")
    for panel in axes[-1]:
        panel.set_xlabel("episode")
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, ticks=ticks, aspect=30 * agents, pad=0.01)
    bar.set_label("copies layer")
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.ax.grid(visible=False)
    subset = f" The first {MOST_SEEDS} of {len(runs['seeds'])} seeds." if len(runs["seeds"]) > MOST_SEEDS else ""
    return figures.Plot(
        "map",
        "The tying map over time, at the end of each episode. The colour shows which layer a layer copies; independent layers "
        f"have their own colour.{subset}",
        figure,
    )


def plot_learning(runs: Metrics, bigram: Losses | None = None) -> figures.Plot:
    """Plot the validation perplexity of every method over steps and over time, without that of untrained models.

    bigram: the losses of a bigram model, which is a dotted line.
    """
    figure, axes = figures.new_figure(1, 2, 11.0, 4.8, share_y=True)
    over_steps, over_time = axes[0]
    losses = runs["validation_loss"][..., 1:].astype(float)
    steps = np.broadcast_to(runs["validation_step"][1:], losses.shape)
    for panel, x in ((over_steps, steps), (over_time, runs["validation_seconds"][..., 1:])):
        for method, (name, style) in enumerate(styles([str(name) for name in runs["methods"]]).items()):
            panel.plot(x[method].T, np.exp(losses[method].T), color=style.colour, alpha=0.3, linewidth=0.6)
            mean = np.exp(losses[method].mean(0))
            panel.plot(x[method].mean(0), mean, style.line, color=style.colour, linewidth=style.width, label=name)
    if losses.size:
        # The large losses of the first steps would hide later differences of a few percent.
        every = np.exp(losses)
        low, high = every.min(), min(every.max(), max(2.5 * every.min(), 1.1 * every[..., -1].max()))
        if bigram is not None:
            line = math.exp(bigram["selection"])
            for panel in (over_steps, over_time):
                panel.axhline(line, **BIGRAM)
            low, high = min(low, line), max(high, line)
        _round_numbers(over_steps, low, high)
    over_steps.set_ylabel("validation perplexity")
    over_steps.set_title("over steps")
    figures.thousands(over_steps)
    over_time.set_title("over time")
    over_time.set_xlabel("seconds of training")
    over_time.set_xlim(left=0)
    over_time.tick_params(labelleft=False)
    figures.legend_below(figure, over_steps, columns=6)
    return figures.Plot(
        "learning",
        "Validation perplexity per token (on the blocks that select the best step) over steps and over seconds of training. "
        "Thin: a seed; thick: mean over seeds (of nats, and of seconds); dashed: fixed maps and variants. The first steps, "
        "with perplexities far above all final ones, lie outside the panel. The time of a step is the median over all steps of "
        f"its method with the same number of distinct layers.{_dotted(bigram)}",
        figure,
    )


def _dotted(bigram: Losses | None) -> str:
    return "" if bigram is None else " Dotted: a bigram model of the tokens that one seed sees."


def plot_bytes(rows: Rows, bigram: Losses | None = None) -> figures.Plot:
    """Plot the test loss of every method over the bytes of its parameters: a dot per seed, a bar for the mean."""
    figure, axes = figures.new_figure(1, 1, 8.5, 5.2)
    panel, style_of = axes[0, 0], styles([row["method"] for row in rows])
    shift = side_by_side({row["method"]: float(np.mean(row["parameter_bytes"])) for row in rows})
    for number, row in enumerate(rows):
        name, loss = row["method"], np.array(row["test_loss"], float)
        x, colour = np.array(row["parameter_bytes"], float) / MIB * shift[name], style_of[name].colour
        panel.plot(x, loss, MARKERS[number % len(MARKERS)], color=colour, alpha=0.55, markersize=5, label=name)
        middle = float(np.mean(x))
        panel.hlines(loss.mean(), middle / APART**0.5, middle * APART**0.5, color=colour, linewidth=2.5)
    dashed = ""
    for row in rows:
        if row["method"] == "untied":
            panel.axhline(np.mean(row["test_loss"]), color="black", linestyle="--", linewidth=0.8)
            dashed = " Dashed: the mean of the untied model."
    if bigram is not None:
        panel.axhline(bigram["test"], **BIGRAM)
    panel.set_xscale("log")
    _round_ticks(panel.xaxis)
    panel.set_xlabel("parameters (MiB), logarithmic")
    panel.set_ylabel("test loss (nats per token)")
    figures.legend_below(figure, panel, columns=4)
    return figures.Plot(
        "bytes",
        "Test loss over the bytes of the parameters, both at the best step. A dot is a seed, a bar the mean over seeds; "
        f"methods with almost equal bytes are drawn side by side.{dashed}{_dotted(bigram)}",
        figure,
    )


def plot_agents(runs: Metrics) -> figures.Plot:
    """Plot distinct layers, reward, Q loss and epsilon of the agents over episodes."""
    names = [str(name) for name in runs["agents"]]
    panels = {  # the seeds of each method `[seed, episode]`, by name
        "distinct layers": dict(zip(names, runs["episode_distinct"], strict=True)),
        "reward": dict(zip(names, runs["episode_reward"], strict=True)),
        "Q loss": dict(zip(names, runs["episode_q_loss"], strict=True)),
        "epsilon": {"agent" if "agent" in names else names[0]: runs["episode_epsilon"][None]},
    }
    figure, axes = figures.grid(len(panels), 2, 4.8, 2.7)
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, values in curves.items():
            colour = styles([name])[name].colour
            panel.plot(runs["episode"], values.T, color=colour, alpha=0.4, linewidth=0.7)
            panel.plot(runs["episode"], values.mean(0), color=colour, linewidth=2, label=name)
        every = np.stack([*curves.values()])
        if title == "Q loss" and (every > 0).any():
            _round_numbers(panel, every[every > 0].min(), every.max())
        panel.set_title(title)
        panel.set_xlabel("episode")
    figures.legend_below(figure, axes[0])
    return figures.Plot(
        "agent",
        "The agents over episodes: distinct layers, reward and squared error of Q (means over the actions of an episode), and "
        "epsilon, the probability of a random action, at its end. Thin: a seed; thick: mean over seeds.",
        figure,
    )


class Style(NamedTuple):
    """The line style of a method in all figures; fixed maps are dashed."""

    colour: str
    line: str
    width: float


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Return the style of each method: fixed for the known ones, assigned in order to fixed maps and variants."""
    static = [name for name in methods if name not in METHOD_COLOURS]
    looks = itertools.cycle(Style(colour, line, 1.6) for line in ("--", ":", "-.") for colour in STATIC_COLOURS)
    style_of = dict(zip(static, looks, strict=False))
    return {name: style_of.get(name) or Style(METHOD_COLOURS[name], "-", 2.2) for name in methods}


def owner_colours(layers: int) -> ListedColormap:
    """Return one colour per layer, along the rainbow, with neighbours alternately light and dark."""
    colours = mpl.colormaps["turbo"](np.linspace(0.04, 0.96, layers))[:, :3]
    if layers > 6:
        colours[1::2] = 0.5 + 0.5 * colours[1::2]
        colours[0::2] *= 0.85
    return ListedColormap(colours)


def _round_numbers(axes: Axes, low: float, high: float) -> None:
    """Make the y axis logarithmic from low to high, with round tick labels even in a narrow range."""
    axes.set_yscale("log")
    if high > low:
        axes.set_ylim(low * (low / high) ** 0.04, high * (high / low) ** 0.04)
    if high < 8 * low:
        _round_ticks(axes.yaxis)
    else:
        axes.yaxis.set_minor_formatter(lambda y, _: f"{y:,g}" if f"{y:e}"[0] in "235" else "")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")


def _round_ticks(axis: Axis) -> None:
    """Label round numbers of a narrow range on a logarithmic axis."""
    axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda x, _: f"{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def side_by_side(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the factor by which each method is moved along a logarithmic axis, so that almost equal sizes do not overlap."""
    shift: dict[str, float] = {}
    left = sorted(sizes, key=lambda name: sizes[name])
    while left:
        cluster = [name for name in left if sizes[name] <= CLUSTER * sizes[left[0]]]
        shift |= {name: APART ** (place - (len(cluster) - 1) / 2) for place, name in enumerate(cluster)}
        left = left[len(cluster) :]
    return shift
