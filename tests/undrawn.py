"""Blank figures instead of drawn ones, for whole runs: drawing takes most of the time of a run of a few steps.

In the tests' own process, `conftest.py` replaces `figures.save` by `save`; tests of figures ask for the fixture `drawn`. In
another process, this file runs an experiment's command likewise: `python tests/undrawn.py experiments/exor.py ARGUMENTS`.
"""

import runpy
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from tiejax.lab.reporting import figures

draw = figures.save


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write blank files in the place of a figure's."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), 255).save(folder / f"{name}.png")
    (folder / f"{name}.pdf").write_bytes(b"%PDF-1.4\n%%EOF\n")
    return folder / f"{name}.png"


if __name__ == "__main__":
    figures.save = save
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
