"""The figures of a dose-and-response run of EXor, from plain arrays."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Curves
from tiejax.lab.reporting.plot import Plot
from tiejax.lab.studies.exor.dose_response import Responses
from tiejax.statistics.arms import ARMS


def plot_doses(responses: Responses) -> list[Plot]:
    """Plot the gap against its bound, and the cost of tying against the dose."""
    bound, doses, solved = responses.bound, responses.doses, responses.solved

    def sorted_by(x: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[np.argsort(x), arm] for arm, name in enumerate(ARMS)}

    return [
        Plot(
            "dose_gap",
            "Distance of the two spellings of 0 in the output table: the smallest |e1 - e2| |h| over contexts, against its "
            "bound in an optimal model (dashed; none with an output bias). One dot per seed, filled if it solved the task; "
            "line: median of solved seeds.",
            plot_dose_gap(np.sort(bound), sorted_by(bound, responses.gap), sorted_by(bound, solved)),
        ),
        Plot(
            "dose_cost",
            "Exact cross-entropy on the training split, less that of the Bayes predictor, and the cost of tying, against the "
            "probability p of the first spelling of 0. One dot per seed; line: median; bottom right: share of seeds that solve "
            "the task.",
            plot_dose_cost(np.sort(doses), sorted_by(doses, responses.excess), sorted_by(doses, solved)),
        ),
    ]


def plot_dose_gap(bound: np.ndarray, gaps: Curves, solved: Curves) -> Figure:
    """Plot the gap of each arm at each dose, `[dose, seed]` by arm, against the bound of the theory."""
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
    """Plot the excess loss by arm, the cost of tying, and the share of solved seeds, against the dose."""
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
    axes[1, 1].set_title("seeds that solve the task")
    figures.percentages(axes[1, 1])
    axes[1, 1].legend(frameon=False)
    for panel in axes.flat:
        panel.set_xlabel("p")
    return figure


def _scatter(axes: Axes, x: np.ndarray, values: np.ndarray, filled: np.ndarray, colour: str) -> None:
    """Plot `[x, seed]` as dots, filled where `filled`."""
    places = np.repeat(x[:, None], values.shape[1], axis=1)
    axes.scatter(places[filled], values[filled], s=12, color=colour, alpha=0.5, linewidths=0)
    axes.scatter(places[~filled], values[~filled], s=12, facecolors="none", edgecolors=colour, alpha=0.35, linewidths=0.7)
