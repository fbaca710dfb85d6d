"""The figures of a text run, with captions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import PANELS, Plot, plot_three_panels, plot_three_panels_published
from tiejax.lab.reporting.uses import plot_uses
from tiejax.lab.studies.text_mlm.claims import TABLE_NAMES, untied_and_tied
from tiejax.lab.studies.text_mlm.drawing import plot_arms, plot_by_bucket, plot_curves_by_name, plot_strips, shades
from tiejax.lab.studies.text_mlm.settings import EQUAL
from tiejax.statistics.arms import ARMS

PUBLISHED_TOP = 5.0
PANEL_COLOURS = {"untied, input": figures.BLUE, "untied, output": figures.GREEN, "tied": figures.ORANGE}

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


def plot_final(final: Mapping[str, Any], sets: Sequence[Set]) -> Plot:
    """Plot final validation loss, accuracy and d_end / d_start, untied against tied; final: as in results.json."""
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
        "Final values (mean over the last tenth of the records), untied against tied: one line per seed, bars: medians. "
        "Distances: means over the pairs of a set.",
        figures.plot_paired_values(panels, ARMS),
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


def plot_norms(metrics: Metrics) -> Plot:
    """Plot the mean norm of the rows of each table over training."""
    curves = {title: metrics[f"norm_{table}"][arm] for title, (table, arm) in PANELS.items()}
    return Plot(
        "norms",
        "Mean Euclidean norm of the rows of each table over training. Thin: a seed; thick: median.",
        plot_curves_by_name(metrics["step"], curves, "mean norm of the rows", PANEL_COLOURS),
    )


def plot_start(final: Mapping[str, Any]) -> Plot:
    """Plot the final validation loss of every arm of a run with `equal_tables_arm`; final: as in results.json."""
    names = {"untied": "untied,\nindependent tables", EQUAL: "untied,\nequal tables", "tied": "tied"}
    losses = {label: np.array(final[arm]["validation_loss"]) for arm, label in names.items()}
    return Plot(
        "equal_tables",
        "Final validation loss of untied models from independent tables, untied models from equal tables, and tied models: one "
        "line per seed; bars: means.",
        plot_arms(losses, "validation loss (nats per masked token)"),
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
        plot_final(results["final"], sets),
        plot_buckets(metrics, results["final"]),
        plot_norms(metrics),
        plot_uses(pair, [str(name) for name in metrics["bucket_names"]], results["uses"]),
        *([plot_start(results["final"])] if EQUAL in results["final"] else []),
    ]
