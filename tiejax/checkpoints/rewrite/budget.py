"""The budget curve of a factorisation: what every rank keeps of the tables, against the bytes that it takes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from tiejax.checkpoints.hub.tables import BYTES, HubTable
from tiejax.checkpoints.rewrite.spectrum import Spectrum, energies_of_tables, energy_kept, rank_for
from tiejax.lab.reporting import figures

ENERGIES = (0.9, 0.95, 0.99, 0.999)
MOST_RANKS = 256  # on the curve, evenly spaced
MEGABYTE = 10**6
COLOURS = {"input": figures.BLUE, "output": figures.ORANGE}


class Budget(NamedTuple):
    """Energies by rank, from 1, of what is factorised and of each of its tables; and what is stored of them now.

    tables: by role, `input` and `output`.
    """

    tables: dict[str, HubTable]
    energies: Float[np.ndarray, "ranks"]
    of_tables: dict[str, Float[np.ndarray, "ranks"]]

    @property
    def bytes_now(self) -> int:
        """Bytes of the tables as they are stored."""
        return sum(table.nbytes for table in self.tables.values())

    def parameters(self, rank: int) -> int:
        """Return the parameters of A and of every B: V r + r D for each table's D."""
        rows = next(iter(self.tables.values())).shape[0]
        return rank * (rows + sum(table.shape[1] for table in self.tables.values()))

    def bytes_of(self, rank: int) -> int:
        """Return the bytes of A and of every B, stored as the tables are."""
        return self.parameters(rank) * BYTES[next(iter(self.tables.values())).tensor.dtype]

    def at(self, rank: int) -> dict[str, Any]:
        """Return what a rank keeps and takes, as a row of the curve."""
        kept = {f"energy_{role}": float(energies[rank - 1]) for role, energies in self.of_tables.items()}
        energy = {"energy": float(self.energies[rank - 1])}
        return {"rank": rank, **energy, **kept, "parameters": self.parameters(rank), "bytes": self.bytes_of(rank)}


def budget_of(tables: dict[str, HubTable], found: Spectrum) -> Budget:
    """Return the budget of tables, by role, from their spectrum."""
    of_tables = dict(zip(tables, energies_of_tables(found), strict=True)) if len(tables) > 1 else {}
    return Budget(tables, energy_kept(found), of_tables)


def facts(budget: Budget, weights: dict[str, Any] | None, rank: int | None) -> dict[str, Any]:
    """Return what budget.json says. weights: where the rows' weights come from, if they have any; rank: the chosen one."""
    first = next(iter(budget.tables.values()))
    full = len(budget.energies)
    whole = {"now": budget.bytes_now}
    if len(budget.tables) > 1:
        whole |= {"tied": first.nbytes, "untied": 2 * first.nbytes}
    return {
        "tables": {
            role: {"name": table.name, "shape": list(table.shape), "dtype": table.dtype, "bytes": table.nbytes}
            for role, table in budget.tables.items()
        },
        "weights": weights,
        "bytes": whole,
        "ranks": {str(energy): budget.at(rank_for(budget.energies, energy)) for energy in ENERGIES},
        # At the width of one table, two that share their factor are one up to a map.
        "tied_up_to_a_map": budget.at(min(first.shape[1], full)) if len(budget.tables) > 1 else None,
        "chosen": budget.at(rank) if rank else None,
        "curve": [budget.at(rank) for rank in ranks_of_curve(full)],
    }


def ranks_of_curve(full: int) -> list[int]:
    """Return the ranks of the curve: every one, or 256 from the first to the full one."""
    return [int(rank) for rank in np.unique(np.linspace(1, full, min(full, MOST_RANKS)).round())]


def lines(budget: Budget, rank: int | None) -> list[str]:
    """Return what the console says of a budget: the tables, and the ranks of some energies with their bytes."""
    shapes = " and ".join(f"{table.name} {list(table.shape)} ({table.dtype})" for table in budget.tables.values())
    said = [f"{shapes}: {budget.bytes_now:,} bytes"]
    rows = [(f"{energy:.1%} of the energy", rank_for(budget.energies, energy)) for energy in ENERGIES]
    if len(budget.tables) > 1:
        width = next(iter(budget.tables.values())).shape[1]
        rows.append(("tied up to a map", min(width, len(budget.energies))))
    if rank is not None:
        rows.append(("chosen", rank))
    return said + [_line(budget, what, rank) for what, rank in rows]


def _line(budget: Budget, what: str, rank: int) -> str:
    alone = "".join(f", {energies[rank - 1]:.4%} of the {role} table" for role, energies in budget.of_tables.items())
    size = budget.bytes_of(rank)
    return (
        f"{what}: rank {rank:,}, {budget.energies[rank - 1]:.4%} kept{alone}, {size:,} bytes ({size / budget.bytes_now:.3f} x)"
    )


def plot(budget: Budget, rank: int | None) -> Figure:
    """Plot energy kept against bytes, with the bytes of whole tables as lines and the chosen rank as a point."""
    figure, axes = figures.grid(1, 1, 5.2, 3.4, below=0.6)
    panel = axes[0]
    ranks = ranks_of_curve(len(budget.energies))
    sizes = [budget.bytes_of(rank) / MEGABYTE for rank in ranks]
    places = np.array(ranks) - 1
    label = "both tables, one factor" if budget.of_tables else f"{next(iter(budget.tables))} table"
    panel.plot(sizes, budget.energies[places], color="black", linewidth=2, label=label)
    for role, energies in budget.of_tables.items():
        panel.plot(sizes, energies[places], color=COLOURS[role], linewidth=1, label=f"of them, the {role} table")
    for size, style, name in _whole(budget):
        panel.axvline(size / MEGABYTE, color="grey", linewidth=1, linestyle=style, label=name)
    if rank is not None:
        chosen = budget.bytes_of(rank) / MEGABYTE, budget.energies[rank - 1]
        panel.plot(*chosen, "o", color=figures.GREEN, label=f"rank {rank:,}")
    panel.set_xlim(left=0)
    panel.set_ylim(top=1.01)
    panel.set_xlabel("megabytes of the factors")
    panel.set_ylabel("energy kept")
    figures.legend_below(figure, panel, columns=2)
    return figure


def _whole(budget: Budget) -> Sequence[tuple[int, str, str]]:
    """Return bytes, style and name of each vertical line: tables that are not factorised."""
    if not budget.of_tables:
        return [(budget.bytes_now, "--", "table as it is stored")]
    one = next(iter(budget.tables.values())).nbytes
    return [(one, ":", "one table for both"), (2 * one, "--", "two tables")]


def save_figure(figure: Figure, folder: Path) -> Path:
    """Write budget.png and budget.pdf; return the path of the first."""
    return figures.save(figure, folder, "budget")
