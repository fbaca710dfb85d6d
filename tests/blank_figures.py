"""A fixture that saves blank figures, for whole runs whose figures are not tested: drawing takes half of their time."""

from pathlib import Path

import matplotlib.figure
import pytest

from tiejax.lab.reporting import figures


def _save(figure: matplotlib.figure.Figure, folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib.figure.Figure(figsize=(0.1, 0.1)).savefig(folder / f"{name}.png")
    return folder / f"{name}.png"


@pytest.fixture
def blank_figures(monkeypatch):
    monkeypatch.setattr(figures, "save", _save)
