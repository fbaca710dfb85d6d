"""The figure of a factorisation's budget."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tiejax.checkpoints.rewrite.budget import Budget, ranks_of_curve
from tiejax.lab.reporting import figures

MEGABYTE = 10**6
COLOURS = {"input": figures.BLUE, "output": figures.ORANGE}


def plot_budget(budget: Budget, rank: int | None) -> Figure:
    """Plot the energy kept against the bytes of the factors.

    Vertical lines mark the bytes of unfactorised tables, and a point marks the chosen rank.
    """
    figure, axes = figures.grid(1, 1, 5.2, 3.4, below=0.6)
    panel = axes[0]
    ranks = ranks_of_curve(len(budget.energies))
    sizes = [budget.bytes_at(rank) / MEGABYTE for rank in ranks]
    places = np.array(ranks) - 1
    label = "both tables, one factor" if budget.by_table else f"{next(iter(budget.tables))} table"
    panel.plot(sizes, budget.energies[places], color="black", linewidth=2, label=label)
    for role, energies in budget.by_table.items():
        panel.plot(sizes, energies[places], color=COLOURS[role], linewidth=1, label=f"the {role} table alone")
    for size, style, name in _unfactorised(budget):
        panel.axvline(size / MEGABYTE, color="grey", linewidth=1, linestyle=style, label=name)
    if rank is not None:
        chosen = budget.bytes_at(rank) / MEGABYTE, budget.energies[rank - 1]
        panel.plot(*chosen, "o", color=figures.GREEN, label=f"rank {rank:,}")
    panel.set_xlim(left=0)
    panel.set_ylim(top=1.01)
    panel.set_xlabel("size of the factors (MB)")
    panel.set_ylabel("energy kept")
    figures.legend_below(figure, panel, columns=2)
    return figure


def _unfactorised(budget: Budget) -> Sequence[tuple[int, str, str]]:
    """Return bytes, line style and label of each vertical line."""
    if not budget.by_table:
        return [(budget.bytes_now, "--", "table as stored")]
    one = next(iter(budget.tables.values())).nbytes
    return [(one, ":", "one table for both"), (2 * one, "--", "two tables")]
