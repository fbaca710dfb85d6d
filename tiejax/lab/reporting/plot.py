"""A figure with its file name and its caption."""

from typing import NamedTuple

from matplotlib.figure import Figure


class Plot(NamedTuple):
    """A figure with its file name and caption."""

    name: str
    caption: str
    figure: Figure
