"""The figures of an EXor run, from plain arrays and the body of results.json."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import PANELS, Plot, plot_three_panels, plot_three_panels_published
from tiejax.lab.reporting.uses import plot_uses
from tiejax.lab.studies.exor.plateaus import NONE, Level, assign
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.exor.trajectories import Trajectories
from tiejax.statistics.arms import ARMS

PAIR_COLOURS = {"zero": figures.BLUE, "one": figures.ORANGE, "even_odd": figures.GREEN}
SAMPLED = {"cross_entropy": "loss", "accuracy": "accuracy"}  # names of the sampled values in metrics.npz
MEASURES = {"cross_entropy": "Cross-entropy (nats)", "accuracy": "Accuracy"}
LEAST_SHARE = 0.02  # plateaus that never hold so many members of an arm are drawn as one
RARE = "rarer plateaus"

ByTable = Mapping[str, Mapping[str, np.ndarray]]  # table -> pair -> [arm, seed, record]


def _panels(values: ByTable, labels: Mapping[str, str]) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
    """Return the curves of the three panels, and colours, by label; a pair has the same colour in all runs and arms."""
    panels = {title: {labels[pair]: values[table][pair][arm] for pair in labels} for title, (table, arm) in PANELS.items()}
    return panels, {label: PAIR_COLOURS[pair] for pair, label in labels.items()}


def plot_distances(steps: np.ndarray, distance: ByTable, labels: Mapping[str, str]) -> list[Plot]:
    """Plot the paper's three panels, with every seed and in the paper's style. labels: pair -> its label."""
    panels, colours = _panels(distance, labels)
    return [
        Plot(
            "distance",
            "Distance between the spellings of each bit over training. Thin: one seed each; thick: median over seeds.",
            plot_three_panels(steps, panels, "Euclidean distance", colours),
        ),
        Plot(
            "distance_published",
            "The same distances in the style of the paper: mean and 95 % band over seeds, at recorded multiples of 1,000 "
            "steps.",
            plot_three_panels_published(steps, panels, colours),
        ),
    ]


def plot_relative_distances(steps: np.ndarray, relative: ByTable, labels: Mapping[str, str]) -> Plot:
    """Plot the relative distances of the pairs, and of even and odd, for every seed."""
    panels, colours = _panels(relative, {**labels, "even_odd": "even and odd"})
    return Plot(
        "relative_distance",
        "Relative distance: distance divided by the mean distance between spellings of 0 and spellings of 1 in the same table "
        "(dotted: 1), which removes the shrinking of whole tables by weight decay. Even and odd differ in meaning, but neither "
        "is ever predicted: the reverse violation of the distributional hypothesis.",
        plot_three_panels(steps, panels, "relative distance", colours, relative=True),
    )


def plot_learning(
    exact_steps: np.ndarray,
    exact: Mapping[str, np.ndarray],
    steps: np.ndarray,
    sampled: Mapping[str, np.ndarray],
    bayes: Mapping[str, Mapping[str, float]],
) -> Plot:
    """Plot the exact risk by split (`[arm, seed, record, split]`), if it was computed, and the sampled risk.

    bayes: split -> measure -> the value of the Bayes predictor.
    """
    panels: dict[str, Any] = {}

    def add(kind: str, split: str, at: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        for measure, title in MEASURES.items():
            if measure in values and np.isfinite(values[measure]).any():
                panels[f"{title}, {kind}"] = at, dict(zip(ARMS, values[measure], strict=True)), bayes[split][measure]

    for place, (split, kind) in enumerate((("train", "exact, training split"), ("validation", "exact, held-out strings"))):
        add(kind, split, exact_steps, {measure: values[..., place] for measure, values in exact.items()})
    add("training strings redrawn", "train", steps, sampled)
    return Plot(
        "learning",
        "Cross-entropy and accuracy over training. Thin: one seed each; thick: median; dashed: the best possible predictor. "
        "The first record, of untrained models, may lie outside the panel.",
        figures.plot_learning_curves(panels),
    )


def plot_plateaus(steps: np.ndarray, losses: Mapping[str, np.ndarray], levels: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot the share of members on each plateau at every record, stacked by ascending loss; rare ones as one, then none.

    losses: exact cross-entropy on the training split, `[seed, record]` by arm. levels: as in `plateaus` of results.json.
    """
    by_loss = [Level(level["knows"], level["loss"]) for level in levels]
    on = {name: assign(values, by_loss) for name, values in losses.items()}
    shares = {
        name: np.stack([(places == level).mean(0) for level in (*range(len(by_loss)), -1)]) for name, places in on.items()
    }
    often = [max(share[place].max() for share in shares.values()) >= LEAST_SHARE for place in range(len(by_loss))]
    drawn, rare = np.flatnonzero(often), np.flatnonzero(np.logical_not(often))
    labels = [f"{by_loss[place].loss:.2f}: {by_loss[place].knows}" for place in drawn]
    colours = list(mpl.colormaps["viridis"](np.linspace(1, 0, max(len(drawn), 2)))[: len(drawn)])
    if len(rare):
        labels, colours = [*labels, RARE], [*colours, "#b0b0b0"]
    figure, axes = figures.new_figure(1, len(shares), 4.6 * len(shares), 4.4, share_y=True)
    for panel, (name, share) in zip(axes[0], shares.items(), strict=True):
        parts = [*share[drawn], *([share[rare].sum(0)] if len(rare) else []), share[-1]]
        panel.stackplot(steps, parts, labels=[*labels, NONE], colors=[*colours, "#e4e4e4"], linewidth=0)
        panel.set_title(name)
        panel.set_xlim(steps[0], steps[-1] if len(steps) > 1 else steps[0] + 1)
        figures.thousands(panel)
        figures.percentages(panel)
    figures.legend_below(figure, axes[0, 0], columns=2)
    return Plot(
        "plateaus",
        "Share of the models on each plateau of the exact loss over training. A plateau is the loss of a predictor that knows "
        "only what the legend says, computed from the task; a model is on the nearest one within .03 nat. Parity: the last "
        "symbol; set bits and others: the numbers of visible symbols that spell 1 and 0.",
        figure,
    )


def plot_all(
    metrics: Mapping[str, np.ndarray],
    runs: Trajectories,
    task: EXor,
    body: Mapping[str, Any],
    bayes: Mapping[str, Mapping[str, float]],
) -> list[Plot]:
    """Plot all figures of a run in the order of its report.

    metrics: the arrays of metrics.npz. runs: trajectories of the seeds that stayed finite. body: of results.json. bayes:
    split -> measure -> the value of the Bayes predictor.
    """
    plateaus = body["plateaus"]
    finite = np.asarray(metrics["finite"].all(axis=(0, 2)))
    shown = [bit for bit in ("zero", "one") if bit in runs.distance["input"]]
    labels = {bit: f"{bit} pair (DH {'holds' if task.imbalance(bit) < 1e-9 else 'fails'})" for bit in shown}
    exact = {name: runs.exact[name] for name in ("cross_entropy", "accuracy") if name in runs.exact}
    sampled = {name: metrics[f"validation_redrawn_{field}"][:, finite] for name, field in SAMPLED.items()}
    losses = dict(zip(ARMS, runs.exact["cross_entropy"][..., 0], strict=True)) if plateaus else {}
    return [
        *(plot_distances(runs.steps, runs.distance, labels) if labels else []),
        plot_relative_distances(runs.steps, runs.relative, labels),
        plot_learning(runs.exact_steps, exact, runs.steps, sampled, bayes),
        *([] if plateaus is None else [plot_plateaus(runs.exact_steps, losses, plateaus["levels"])]),
        plot_uses(metrics, task.names, body["uses"], finite),
    ]
