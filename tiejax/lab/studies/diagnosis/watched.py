"""Tables that tell how many of their rows were read, so that a long diagnosis can show how far it is."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiejax.checkpoints.hub.tables import HubTable
from tiejax.geometry.table_rows import Table

Tell = Callable[[str, int, int | None], None]  # of a phase: its name, how much is done, of how much


class Watched:
    """A table that tells how many rows are read of it."""

    def __init__(self, table: HubTable, seen: Callable[[int], None]) -> None:
        self.table, self.seen = table, seen

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and width."""
        return self.table.shape

    def __getitem__(self, rows: Any) -> np.ndarray:
        values = self.table[rows]
        self.seen(len(values))
        return values


def watch(tell: Tell, phase: str, total: int, *tables: HubTable) -> list[Table]:
    """Return tables that tell how far a phase is which reads `total` rows of them."""
    done = 0

    def seen(number: int) -> None:
        nonlocal done
        done = min(done + number, total)
        tell(phase, done, total)

    return [Watched(table, seen) for table in tables]
