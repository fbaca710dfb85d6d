"""Progress of a diagnosis: tables that count the rows read from them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiejax.checkpoints.hub.tables import HubTable
from tiejax.geometry.table_rows import Table

Progress = Callable[[str, int, int | None], None]  # (phase, done, total)


def no_progress(phase: str, done: int, total: int | None) -> None:
    """No-op progress callback."""


class CountedTable:
    """A table that passes the number of rows of every read to a callback."""

    def __init__(self, table: HubTable, count: Callable[[int], None]) -> None:
        self.table, self.count = table, count

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and width."""
        return self.table.shape

    def __getitem__(self, rows: Any) -> np.ndarray:
        values = self.table[rows]
        self.count(len(values))
        return values


def counted(progress: Progress, phase: str, total: int, *tables: HubTable) -> list[Table]:
    """Wrap tables so that reading their rows, `total` in all, advances the progress of a phase."""
    done = 0

    def count(number: int) -> None:
        nonlocal done
        done = min(done + number, total)
        progress(phase, done, total)

    return [CountedTable(table, count) for table in tables]
