"""Blank figures instead of drawn ones, for whole runs: drawing takes most of the time of a run of a few steps.

In the tests' own process, `conftest.py` replaces `figures.drawn` by `blank`; tests of figures ask for the fixture `drawn`. In
another process, this file runs an experiment's command likewise: `python tests/undrawn.py experiments/exor.py ARGUMENTS`.
"""

import io
import runpy
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from tiejax.lab.reporting import figures

drawn = figures.drawn


def blank(figure: Figure) -> dict[str, bytes]:
    """Return blank files in the place of a figure's."""
    png = io.BytesIO()
    Image.new("L", (8, 8), 255).save(png, format="png")
    return {"png": png.getvalue(), "pdf": b"%PDF-1.4\n%%EOF\n"}


if __name__ == "__main__":
    figures.drawn = blank
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
