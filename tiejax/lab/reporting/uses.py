"""Gradients of the input and output use of a table, as a figure and as a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Curves, Plot
from tiejax.lab.reporting.words import Table, formatted, share


def plot_uses(
    metrics: Mapping[str, np.ndarray], names: Sequence[str], rows: Sequence[Mapping[str, Any]], chosen: np.ndarray | None = None
) -> Plot:
    """Plot the gradients of the input and of the output use of a table over training and by bucket of rows.

    metrics: `use_*` as recorded, `[arm, seed, record, ...]`. names: names of the buckets. rows: `uses` of results.json.
    chosen: boolean mask over the seed axis (default: all seeds).
    """
    places = slice(None) if chosen is None else np.flatnonzero(chosen)
    arms = [str(name) for name in metrics["arms"]]
    late = max(1, metrics["use_ratio"].shape[2] // 10)

    def median(arm: int, bucket: int) -> float:
        """Return the median of one bucket of one arm; all buckets at once may not fit in memory."""
        norms = (metrics[f"use_bucket_{use}"][arm, :, -late:, bucket][places] for use in ("output", "input"))
        with np.errstate(divide="ignore", invalid="ignore"):  # the input use of an unused symbol has no gradient
            values = np.divide(*norms)
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if finite.size else math.nan

    by_bucket = {name: [median(arm, bucket) for bucket in range(len(names))] for arm, name in enumerate(arms)}
    published = [(row["from"], row["to"], row["published"]) for row in rows if row["published"]]
    figure, axes = figures.new_figure(1, 3, 11.5, 3.3)
    ratios, cosines = (dict(zip(arms, metrics[name][:, places], strict=True)) for name in ("use_ratio", "use_cosine"))
    _plot_ratios(axes[0, 0], metrics["step"], ratios, published)
    _plot_over_steps(axes[0, 1], metrics["step"], cosines, 0, "cosine of both")
    _plot_buckets(axes[0, 2], by_bucket, names)
    figures.legend_below(figure, axes[0, 0])
    return Plot(
        "uses",
        "Gradients of the two uses of a table: the norm for the output use divided by the norm for the input use (dotted: 1), "
        "and the cosine of the two, on the batch of the step. Untied: gradients of two tables. Thin: one seed each; thick: "
        "median. Dashed: a published log of OLMo-1B (arXiv:2603.26663), which compares a gradient of activations with one of "
        "weights. Right: median over seeds and the last tenth of the records.",
        figure,
    )


def _plot_over_steps(axes: Axes, steps: np.ndarray, curves: Curves, line: float, title: str) -> None:
    """Plot every seed of every arm over steps on a logarithmic axis, without step 0, with a dotted line at `line`."""
    shown = np.where(steps > 0, steps, np.nan)
    for name, values in curves.items():
        figures.plot_seeds(axes, shown, values, figures.ARM_COLOURS[name], name)
    axes.set_xscale("log")
    axes.set_xlabel("step")
    axes.axhline(line, color="black", linewidth=0.8, linestyle=":")
    axes.set_title(title)


def _plot_ratios(axes: Axes, steps: np.ndarray, ratios: Curves, published: Sequence[tuple[int, int, float]]) -> None:
    """Plot ratios over steps, and the published ones: (first step, last step, ratio)."""
    _plot_over_steps(axes, steps, ratios, 1, "gradient of output use / input use")
    for number, (low, high, ratio) in enumerate(published):
        label = "" if number else "OLMo-1B, published"
        axes.hlines(ratio, low, high, color="black", linewidth=1.5, linestyle="--", label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")


def _plot_buckets(axes: Axes, by_bucket: Mapping[str, Sequence[float]], buckets: Sequence[str]) -> None:
    places, width = np.arange(len(buckets)), 0.8 / len(by_bucket)
    for number, (name, heights) in enumerate(by_bucket.items()):
        axes.bar(places + (number - (len(by_bucket) - 1) / 2) * width, heights, width, color=figures.ARM_COLOURS[name])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(places, buckets, rotation=30 if len("".join(buckets)) > 30 else 0)
    axes.grid(visible=False, axis="x")
    axes.set_title("ratio at the end, by rows of the table")


def uses_table(rows: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> dict[str, Table]:
    """Return the report's table of both uses over training, with the published ratios; rows: `uses` of results.json."""
    lines = []
    for row in rows:
        until = "the end" if row["to"] is None else f"{row['to'] - 1:,}"
        steps = "0" if row["to"] == 1 else f"{row['from']:,} to {until}"
        ratios, cosines = ([formatted(row[name][measure], ".3g") for name in arms] for measure in ("ratio", "cosine"))
        values = [*ratios, *("-" if row[name]["share"] is None else share(row[name]["share"]) for name in arms), *cosines]
        lines.append([steps, *values, f"{row['published']:g}" if row["published"] else "-"])
    measures = ("output / input", "share of the output use", "cosine")
    headings = ["steps", *(f"{measure}, {name}" for measure in measures for name in arms), "OLMo-1B, published"]
    title = "What each use of a table asks of it: norms of gradients, medians over records and seeds"
    return {title: (headings, lines)} if rows else {}
