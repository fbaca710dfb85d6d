"""The figures of a text run, with captions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import PANELS, Curves, Plot, plot_three_panels, plot_three_panels_published
from tiejax.lab.reporting.uses import plot_uses
from tiejax.lab.studies.text_mlm.claims import TABLE_NAMES, untied_and_tied
from tiejax.lab.studies.text_mlm.settings import EQUAL
from tiejax.statistics.arms import ARMS

PUBLISHED_TOP = 5.0

Metrics = Mapping[str, np.ndarray]


class Set(NamedTuple):
    """A non-empty set of pairs: its number and name in the arrays, its label and colour in figures."""

    number: int
    name: str
    label: str
    colour: str


def occurring_sets(sets: Sequence[Mapping[str, Any]]) -> list[Set]:
    """Return the non-empty sets of pairs, with one hue where DH holds and another where it fails; sets: as in results.json."""
    occurring = []
    for dh, suffix, colour in (
        ("holds", " (DH holds)", figures.BLUE),
        ("fails", " (DH fails)", figures.ORANGE),
        (None, "", figures.GREEN),
    ):
        alike = [(number, entry["name"]) for number, entry in enumerate(sets) if entry["dh"] == dh and entry["pairs"]]
        for (number, name), shade in zip(alike, shades(colour, len(alike)), strict=True):
            occurring.append(Set(number, name, f"{name}{suffix}", shade))
    return sorted(occurring)


def shades(colour: str, number: int) -> list[str]:
    """Return `number` shades of a colour, from the colour itself towards white."""
    towards_white = mpl.colors.LinearSegmentedColormap.from_list("", [colour, "white"])
    return [mpl.colors.to_hex(towards_white(0.7 * k / number)) for k in range(number)]


def plot_distances(metrics: Metrics, sets: Sequence[Set]) -> list[Plot]:
    """Plot the distances of all pairs over training, and again for the first seed in the style of the paper."""
    steps, colours = metrics["step"], {pairs.label: pairs.colour for pairs in sets}

    def panels(reduce_seeds: Callable[[np.ndarray], np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        """Return curves `[pair, record]` by table and set; reduce_seeds: [seed, record, pair] -> [record, pair]."""
        curves: dict[str, dict[str, np.ndarray]] = {}
        for title, (table, arm) in PANELS.items():
            distances = reduce_seeds(metrics[f"distance_{table}"][arm])
            curves[title] = {pairs.label: distances[:, metrics["pair_set"] == pairs.number].T for pairs in sets}
        return curves

    first = panels(lambda values: values[0])
    highest = max(values.mean(0).max() for curves in first.values() for values in curves.values())
    return [
        Plot(
            "distance",
            "Distance of the two words of a pair over training. Thin: a pair (median over seeds); thick: the median over the "
            "pairs of a set.",
            plot_three_panels(steps, panels(lambda values: np.median(values, axis=0)), "Euclidean distance", colours),
        ),
        Plot(
            "distance_published",
            f"The same in the style of the paper: mean and 95 % band over the pairs of one seed (seed {metrics['seeds'][0]}).",
            plot_three_panels_published(steps, first, colours, every=1, top=max(PUBLISHED_TOP, 1.1 * highest)),
        ),
    ]


def plot_ratios(by_pair: Sequence[Mapping[str, Any]], sets: Sequence[Set]) -> Plot:
    """Plot d_end / d_start of every pair in each table; by_pair: `distance_ratio_by_pair` of results.json."""
    panels = {
        title: {pairs.label: np.array([row[table] for row in by_pair if row["set"] == pairs.name]) for pairs in sets}
        for title, table in zip(PANELS, TABLE_NAMES, strict=True)
    }
    return Plot(
        "distance_ratio",
        "Distance at the end (mean over the last tenth of the records) divided by the distance at the start. One dot per pair, "
        "the mean over seeds, in the order of the lists of words; bars: medians; dotted: unchanged distance.",
        plot_strips(panels, "distance, end / start", {pairs.label: pairs.colour for pairs in sets}),
    )


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


def plot_learning(metrics: Metrics, bigram: float) -> Plot:
    """Plot the validation and training loss and accuracy of every seed over training; bigram: validation loss of a bigram."""
    panels = {
        f"{split} {title}": (
            metrics["validation_step" if split == "validation" else "step"],
            dict(zip(ARMS, metrics[f"{split}_{measure}"], strict=True)),
            bigram if (split, measure) == ("validation", "loss") else math.nan,
        )
        for split in ("validation", "train")
        for measure, title in (("loss", "loss (nats per masked token)"), ("accuracy", "accuracy"))
    }
    return Plot(
        "learning",
        "Loss and accuracy at the masked tokens over training, on the validation split and on the batch of the step. Thin: a "
        "seed; thick: median. The first record, of untrained models, may lie outside the panel. "
        "Dotted: the best bigram model of the sentences that one seed reads.",
        figures.plot_learning_curves(panels, "bigram", ":"),
    )


def plot_buckets(metrics: Metrics, final: Mapping[str, Any]) -> Plot:
    """Plot final validation loss and accuracy by the frequency of the masked token; final: as in results.json."""
    names = [str(name) for name in metrics["bucket_names"]]

    def values(measure: str, arm: str) -> np.ndarray:
        by_name = final[arm][f"validation_{measure}_by_bucket"]
        return np.array([by_name[name] for name in names], dtype=float).T

    return Plot(
        "buckets",
        "Final validation loss and accuracy by the masked token's frequency rank in the training split (and for twins): untied "
        "and tied, and their difference. One dot per seed; bars: medians.",
        plot_by_bucket(
            names,
            {
                title: (values(measure, "untied"), values(measure, "tied"))
                for measure, title in (("loss", "loss (nats)"), ("accuracy", "accuracy"))
            },
        ),
    )


def plot_by_bucket(names: Sequence[str], measures: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Plot untied and tied values by bucket, with their difference below; one column per measure.

    measures: (untied, tied) by title, each `[seed, bucket]`, NaN for an empty bucket. One dot per seed, bars: medians.
    """
    figure, axes = figures.new_figure(2, len(measures), max(4.8, 0.9 * len(names)) * len(measures), 5.4)
    places = np.arange(len(names))
    for column, (title, values) in enumerate(measures.items()):
        above, below = axes[:, column]
        untied, tied = values
        for pair in zip(untied, tied, strict=True):
            above.plot([places - 0.18, places + 0.18], pair, color="grey", alpha=0.3, linewidth=0.8)
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


def plot_start(final: Mapping[str, Any]) -> Plot:
    """Plot the final validation loss of every arm of a run with `equal_tables_arm`; final: as in results.json."""
    arms = ("untied", EQUAL, "tied")
    losses = tuple(np.array(final[arm]["validation_loss"]) for arm in arms)
    return Plot(
        "equal_tables",
        "Final validation loss of untied models from independent tables, untied models from equal tables, and tied models: one "
        "line per seed; bars: medians.",
        figures.plot_paired_values({"validation loss\n(nats per masked token)": losses}, arms),
    )


def plot_all(metrics: Metrics, results: Mapping[str, Any]) -> list[Plot]:
    """Plot all figures of a run from the output of `claims.analyse`; none if no seed stayed finite."""
    if not results["seeds"]:
        return []
    sets, pair = occurring_sets(results["sets"]), untied_and_tied(metrics)
    return [
        *plot_distances(metrics, sets),
        plot_ratios(results["distance_ratio_by_pair"], sets),
        plot_learning(pair, results["gate"]["bigram"]),
        plot_buckets(metrics, results["final"]),
        plot_uses(pair, [str(name) for name in metrics["bucket_names"]], results["uses"]),
        *([plot_start(results["final"])] if EQUAL in results["final"] else []),
    ]
