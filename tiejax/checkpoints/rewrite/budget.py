"""The budget of a factorisation: the energy that each rank keeps of the tables, and the bytes it takes."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.tables import BYTES, HubTable
from tiejax.checkpoints.rewrite.factors import Maps
from tiejax.checkpoints.rewrite.spectrum import Spectrum, energies_by_table, energy_kept, rank_for

ENERGIES = (0.9, 0.95, 0.99, 0.999)
MOST_RANKS = 256  # at most, on the budget curve


class Budget(NamedTuple):
    """The energy (share of the sum of squares) kept at each rank, and the tables as stored.

    tables: the tables by role, `input` and `output`. energies: energy of all tables together at ranks 1, 2, ... by_table:
    energy of each table, if there are two. maps: the maps that are written (`factors.maps_of`).
    """

    tables: dict[str, HubTable]
    energies: Float[np.ndarray, " ranks"]
    by_table: dict[str, Float[np.ndarray, " ranks"]]
    maps: Maps

    @property
    def bytes_now(self) -> int:
        """Bytes of the tables as stored, and of the maps that are replaced."""
        return sum(table.nbytes for table in self.tables.values()) + self.maps.replaced

    def parameters(self, rank: int) -> int:
        """Return the number of parameters of A and all maps B: V r, and r W for each map to a width W."""
        rows = next(iter(self.tables.values())).shape[0]
        own = [table.shape[1] for table in self.tables.values()]
        return rank * (rows + sum(own if rank == self.maps.own_at else self.maps.widths))

    def bytes_at(self, rank: int) -> int:
        """Return the bytes of A and all maps B, in the dtype of the tables."""
        kept = self.maps.replaced if rank == self.maps.own_at else 0
        return self.parameters(rank) * BYTES[next(iter(self.tables.values())).tensor.dtype] + kept

    def at(self, rank: int) -> dict[str, Any]:
        """Return a row of the budget curve: the energies kept, the parameters and the bytes of a rank."""
        by_role = {f"energy_{role}": float(energies[rank - 1]) for role, energies in self.by_table.items()}
        energy = {"energy": float(self.energies[rank - 1])}
        return {"rank": rank, **energy, **by_role, "parameters": self.parameters(rank), "bytes": self.bytes_at(rank)}


def budget_of(tables: dict[str, HubTable], found: Spectrum, maps: Maps) -> Budget:
    """Return the budget of tables, given by role, from their spectrum."""
    by_table = dict(zip(tables, energies_by_table(found), strict=True)) if len(tables) > 1 else {}
    return Budget(tables, energy_kept(found), by_table, maps)


def facts(budget: Budget, weights: dict[str, Any] | None, rank: int | None) -> dict[str, Any]:
    """Return the content of budget.json. weights: the source of the row weights, if any. rank: the chosen rank, if any."""
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
        # At the width of one table, two tables that share a factor are tied up to a linear map.
        "tied_up_to_a_map": budget.at(min(first.shape[1], full)) if len(budget.tables) > 1 else None,
        "chosen": budget.at(rank) if rank else None,
        "curve": [budget.at(rank) for rank in ranks_of_curve(full)],
    }


def ranks_of_curve(full: int) -> list[int]:
    """Return the ranks on the curve: all of them, or 256 evenly spaced ones from 1 to `full`."""
    return [int(rank) for rank in np.unique(np.linspace(1, full, min(full, MOST_RANKS)).round())]


def lines(budget: Budget, rank: int | None) -> list[str]:
    """Return a summary as lines of text: the tables, and the ranks that keep certain energies, with their bytes."""
    shapes = " and ".join(f"{table.name} {list(table.shape)} ({table.dtype})" for table in budget.tables.values())
    head = f"{shapes}: {budget.bytes_now:,} bytes"
    rows = [(f"{energy:.1%} of the energy", rank_for(budget.energies, energy)) for energy in ENERGIES]
    if len(budget.tables) > 1:
        width = next(iter(budget.tables.values())).shape[1]
        rows.append(("tied up to a map", min(width, len(budget.energies))))
    if rank is not None:
        rows.append(("chosen", rank))
    return [head] + [_line(budget, what, rank) for what, rank in rows]


def _line(budget: Budget, what: str, rank: int) -> str:
    alone = "".join(f", {energies[rank - 1]:.4%} of the {role} table" for role, energies in budget.by_table.items())
    size = budget.bytes_at(rank)
    return (
        f"{what}: rank {rank:,}, {budget.energies[rank - 1]:.4%} kept{alone}, {size:,} bytes ({size / budget.bytes_now:.3f} x)"
    )
