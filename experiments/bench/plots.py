"""The figure of EXor's throughput."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures

ENGINE_COLOURS = {"fast": figures.ORANGE, "plain": figures.BLUE}


def plot_throughput(rows: Sequence[Mapping[str, Any]], torch_rate: Mapping[str, float] | None, floor: float) -> Figure:
    """Plot throughput over the number of models, log-log, with its range. rows: those of results.json."""
    figure, grid = figures.new_figure(1, 1, 6.0, 4.0)
    axes = grid[0, 0]
    for engine, colour in ENGINE_COLOURS.items():
        measured = [row for row in rows if row["engine"] == engine]
        if measured:
            median = np.array([row["median"] for row in measured])
            bars = np.abs([[row["median"] - row["min"], row["max"] - row["median"]] for row in measured]).T
            models = [row["models"] for row in measured]
            axes.errorbar(models, median, yerr=bars, color=colour, marker="o", capsize=3, label=engine)
    if torch_rate:
        axes.axhline(torch_rate["median"], color=figures.GREEN, label="torch, one model")
    axes.axhline(floor, color="black", linestyle="--", linewidth=1, label="floor of the fast engine")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("models in one ensemble")
    axes.set_ylabel("model-steps per second")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.12))
    return figure
