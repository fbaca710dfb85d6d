"""The figures of a run on text, from plain arrays and the body of results.json."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.panels import PANELS, plot_three_panels, plot_three_panels_published
from tiejax.lab.reporting.plot import Plot
from tiejax.lab.reporting.uses import plot_uses
from tiejax.lab.studies.text_mlm.claims import TABLE_NAMES
from tiejax.lab.studies.text_mlm.figures import plot_by_bucket, plot_curves_by_name, plot_strips, shades
from tiejax.statistics.arms import ARMS

PUBLISHED_TOP = 5.0
PANEL_COLOURS = {"untied, input": figures.BLUE, "untied, output": figures.GREEN, "tied": figures.ORANGE}

Metrics = Mapping[str, np.ndarray]


class Set(NamedTuple):
    """A set of pairs that occurs: its place in the arrays, its name there, its label and colour in figures."""

    place: int
    name: str
    label: str
    colour: str


def occurring_sets(sets: Sequence[Mapping[str, Any]]) -> list[Set]:
    """Return the sets that have pairs, in one hue where DH holds and one where it fails; sets: as in results.json."""
    occurring = []
    for dh, suffix, colour in (
        ("holds", " (DH holds)", figures.BLUE),
        ("fails", " (DH fails)", figures.ORANGE),
        (None, "", figures.GREEN),
    ):
        alike = [(place, entry["name"]) for place, entry in enumerate(sets) if entry["dh"] == dh and entry["pairs"]]
        for (place, name), shade in zip(alike, shades(colour, len(alike)), strict=True):
            occurring.append(Set(place, name, f"{name}{suffix}", shade))
    return sorted(occurring)


def plot_distances(metrics: Metrics, sets: Sequence[Set]) -> list[Plot]:
    """Plot the distances of all pairs over training, and the first seed's as the paper prints them."""
    steps, colours = metrics["step"], {pairs.label: pairs.colour for pairs in sets}

    def panels(of_seeds: Callable[[np.ndarray], np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        """Return curves `[pair, record]` by table and set; of_seeds: [seed, record, pair] -> [record, pair]."""
        curves: dict[str, dict[str, np.ndarray]] = {}
        for title, (table, arm) in PANELS.items():
            distances = of_seeds(metrics[f"distance_{table}"][arm])
            curves[title] = {pairs.label: distances[:, metrics["pair_set"] == pairs.place].T for pairs in sets}
        return curves

    first = panels(lambda values: values[0])
    highest = max(values.mean(0).max() for curves in first.values() for values in curves.values())
    return [
        Plot(
            "distance",
            "Distance of the two words of a pair over training. Thin: one pair each, the median over seeds; thick: the median "
            "over the pairs of a set.",
            plot_three_panels(steps, panels(lambda values: np.median(values, axis=0)), "Euclidean distance", colours),
        ),
        Plot(
            "distance_published",
            f"The same as the paper prints it: mean and 95 % band over the pairs of one seed (seed {metrics['seeds'][0]}).",
            plot_three_panels_published(steps, first, colours, every=1, top=max(PUBLISHED_TOP, 1.1 * highest)),
        ),
    ]


def plot_ratios(by_pair: Sequence[Mapping[str, Any]], sets: Sequence[Set]) -> Plot:
    """Plot how far every pair still is; by_pair: as results.json has it, distance at the end / at the start by table."""
    panels = {
        title: {pairs.label: np.array([row[table] for row in by_pair if row["set"] == pairs.name]) for pairs in sets}
        for title, table in zip(PANELS, TABLE_NAMES, strict=True)
    }
    return Plot(
        "distance_ratio",
        "Distance at the end (mean over the last tenth of the records) over that at the start. One dot a pair, the median over "
        "seeds, in the order of the lists of words; bars: medians; dotted: as far as at the start.",
        plot_strips(panels, "distance, end / start", {pairs.label: pairs.colour for pairs in sets}),
    )


def plot_learning(metrics: Metrics) -> Plot:
    """Plot validation and training loss and accuracy over training, every seed."""
    panels = {
        f"{split} {title}": (
            metrics["validation_step" if split == "validation" else "step"],
            dict(zip(ARMS, metrics[f"{split}_{measure}"], strict=True)),
            math.nan,
        )
        for split in ("validation", "train")
        for measure, title in (("loss", "loss (nats a masked token)"), ("accuracy", "accuracy"))
    }
    return Plot(
        "learning",
        "Loss and accuracy at the masked tokens over training, on the validation split and on the batch of the step. Thin: one "
        "seed each; thick: median. The first record, of untrained models, may lie outside.",
        figures.plot_learning_curves(panels),
    )


def plot_final(final: Mapping[str, Any], sets: Sequence[Set]) -> Plot:
    """Plot final validation loss and accuracy and how far pairs still are, untied against tied; final: as in results.json."""
    untied, tied = (final[arm] for arm in ARMS)
    panels = {
        f"validation {measure}": (np.array(untied[f"validation_{measure}"]), np.array(tied[f"validation_{measure}"]))
        for measure in ("loss", "accuracy")
    }
    for pairs in sets:
        for table in ("input", "output"):
            title = f"distance, end / start,\n{pairs.label},\nuntied {table} - tied"
            separate, shared = (np.array(side["distance_ratio"][table][pairs.name]) for side in (untied, tied))
            panels[title] = separate, shared
    return Plot(
        "paired_final",
        "Final values (mean over the last tenth of the records), untied against tied: one line a seed, bars: medians. "
        "Distances: medians over the pairs of a set.",
        figures.plot_paired_values(panels, ARMS),
    )


def plot_buckets(metrics: Metrics, final: Mapping[str, Any]) -> Plot:
    """Plot final validation loss and accuracy by how frequent the masked token is; final: as in results.json."""
    names = [str(name) for name in metrics["bucket_names"]]

    def values(measure: str, arm: str) -> np.ndarray:
        by_name = final[arm][f"validation_{measure}_by_bucket"]
        return np.array([by_name[name] for name in names], dtype=float).T

    return Plot(
        "buckets",
        "Final validation loss and accuracy by the masked token's rank of frequency in the training split (and of twins), "
        "untied beside tied, and what tying changes. One dot a seed; bars: medians.",
        plot_by_bucket(
            names,
            {
                title: (values(measure, "untied"), values(measure, "tied"))
                for measure, title in (("loss", "loss (nats)"), ("accuracy", "accuracy"))
            },
        ),
    )


def plot_norms(metrics: Metrics) -> Plot:
    """Plot the mean norm of each table's rows over training."""
    curves = {title: metrics[f"norm_{table}"][arm] for title, (table, arm) in PANELS.items()}
    return Plot(
        "norms",
        "Mean Euclidean norm of the rows of each table over training. Thin: one seed each; thick: median.",
        plot_curves_by_name(metrics["step"], curves, "mean norm of the rows", PANEL_COLOURS),
    )


def plot_all(metrics: Metrics, results: Mapping[str, Any]) -> list[Plot]:
    """Plot all figures of a run; metrics and results: what the analysis returns, none if no seed stayed finite."""
    if not results["seeds"]:
        return []
    sets = occurring_sets(results["sets"])
    return [
        *plot_distances(metrics, sets),
        plot_ratios(results["distance_ratio_by_pair"], sets),
        plot_learning(metrics),
        plot_final(results["final"], sets),
        plot_buckets(metrics, results["final"]),
        plot_norms(metrics),
        plot_uses(metrics, [str(name) for name in metrics["bucket_names"]], results["uses"]),
    ]
