"""Figures of a checkpoint's input and output tables, from results.json and the arrays of metrics.npz."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.geometry.ranks import Bands, bands_by_rank
from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Plot

COLOURS = {"input": figures.BLUE, "output": figures.GREEN, "both": figures.ORANGE}
MAPPED = {
    "cosine_from_input": ("input mapped to output", figures.BLUE),
    "cosine_from_output": ("output mapped to input", figures.GREEN),
    "cosine_as_is": ("unmapped", "#888888"),
}


def curves_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Bands]:
    """Return the bands over token rank for the figures. arrays: as in metrics.npz."""
    curves = {}
    for name in ("norm_input", "norm_output", *MAPPED):
        if name in arrays:
            chosen = arrays["scored"] if name.startswith("cosine_from") else slice(None)
            curves[name] = bands_by_rank(arrays[name], arrays["rank"][chosen], arrays["counted"][chosen])
    return curves


def plot_all(results: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Plot]:
    """Plot all figures of a diagnosis, the most important one first. arrays: as in metrics.npz."""
    curves = curves_of(arrays)
    rank = (
        "Ranks: by frequency in the corpus, without tokens that do not occur."
        if results["rank"]["by"] == "corpus"
        else "Ranks: token ids, which roughly follow frequency in BPE and WordPiece vocabularies."
    )
    bands = "Line: median by rank; band: the middle 80 % of the tokens."
    norms = Plot("norms", f"Norms of the rows by token rank. {bands} {rank}", plot_norms(results, curves))
    if results["fact"] != "untied":
        return [norms]
    return [
        Plot(
            "cosines",
            "Cosine between the two rows of a token: after a least-squares map in either direction (tables centred), and "
            f"unmapped. Left: all scored tokens; right: by token rank. {bands} {rank}",
            plot_cosines(results, curves, arrays),
        ),
        norms,
    ]


def plot_norms(results: Mapping[str, Any], curves: Mapping[str, Bands]) -> Figure:
    """Plot the row norms of both tables, or of the one table of a tied model, over token rank."""
    tied = "norm_output" not in curves
    figure, axes = figures.new_figure(1, 1 if tied else 2, 6 if tied else 8.4, 3.2)
    for panel, role in zip(axes[0], ("input", "output"), strict=False):
        _plot_band(panel, curves[f"norm_{role}"], COLOURS["both" if tied else role], role)
        panel.set_title("the table" if tied else f"{role} table")
        panel.set_ylim(bottom=0)
        _label_ranks(panel, results)
    axes[0, 0].set_ylabel("Euclidean norm of a row")
    return figure


def plot_cosines(results: Mapping[str, Any], curves: Mapping[str, Bands], arrays: Mapping[str, np.ndarray]) -> Figure:
    """Plot the distribution of the cosines between tokens' two rows, and the cosines over token rank."""
    figure, axes = figures.new_figure(1, 2, 8.4, 3.2)
    shares, by_rank = axes[0]
    shown = {name: look for name, look in MAPPED.items() if name in arrays and not np.isnan(arrays[name]).all()}
    low = min((float(np.nanmin(arrays[name])) for name in shown), default=0.0)
    edges = np.linspace(min(low, 0), 1, 81)
    for name, (label, colour) in shown.items():
        values = arrays[name][~np.isnan(arrays[name])]
        heights, _ = np.histogram(values, edges)
        shares.stairs(heights / max(len(values), 1), edges, color=colour, linewidth=1.5, label=label)
        _plot_band(by_rank, curves[name], colour, label)
    shares.set_xlabel("cosine of a token's two rows")
    shares.set_ylabel("share of tokens")
    if shown:  # a table of zeros has no cosines
        shares.legend(frameon=False, fontsize=8)
    by_rank.set_ylabel("cosine of a token's two rows")
    _label_ranks(by_rank, results)
    return figure


def _plot_band(axes: Axes, bands: Bands, colour: str, label: str) -> None:
    if not len(bands.rank):
        return
    axes.fill_between(bands.rank, bands.low, bands.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(bands.rank, bands.median, color=colour, linewidth=2, label=label)


def _label_ranks(axes: Axes, results: Mapping[str, Any]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("rank by frequency in the corpus" if results["rank"]["by"] == "corpus" else "rank by token id")
