"""The figure of the plateaus of an EXor run: where its members are during training."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.plot import Plot
from tiejax.lab.studies.exor.plateaus import NONE, Level, assign

LEAST_SHARE = 0.02  # plateaus that never hold so many members of an arm are drawn as one
RARE = "rarer plateaus"


def plot_plateaus(steps: np.ndarray, losses: Mapping[str, np.ndarray], levels: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot the share of members on each plateau at every record.

    losses: exact cross-entropy on the training split, `[seed, record]` by arm. levels: as in `plateaus` of results.json.
    """
    by_loss = [Level(level["knows"], level["loss"]) for level in levels]
    on = {name: assign(values, by_loss) for name, values in losses.items()}
    shares = {
        name: np.stack([(places == level).mean(0) for level in (*range(len(by_loss)), -1)]) for name, places in on.items()
    }
    drawn = [place for place in range(len(by_loss)) if max(share[place].max() for share in shares.values()) >= LEAST_SHARE]
    return Plot(
        "plateaus",
        "Share of the models on each plateau of the exact loss over training. A plateau is the loss of a predictor that knows "
        "only what the legend says, computed from the task; a model is on the nearest one within .03 nat. Parity: the last "
        "symbol; set bits and others: the numbers of visible symbols that spell 1 and 0.",
        _plot(steps, shares, by_loss, drawn),
    )


def _plot(steps: np.ndarray, shares: Mapping[str, np.ndarray], by_loss: Sequence[Level], drawn: Sequence[int]) -> Figure:
    """Stack the shares of the drawn plateaus by ascending loss, those of rarer ones, and those on none."""
    figure, axes = figures.new_figure(1, len(shares), 4.6 * len(shares), 4.4, share_y=True)
    rare = [place for place in range(len(by_loss)) if place not in drawn]
    labels = [*(f"{by_loss[place].loss:.2f}: {by_loss[place].knows}" for place in drawn), *([RARE] if rare else []), NONE]
    ramp = mpl.colormaps["viridis"](np.linspace(1, 0, max(len(drawn), 2)))[: len(drawn)]
    colours = [*ramp, *(["#b0b0b0"] if rare else []), "#e4e4e4"]
    for panel, (name, share) in zip(axes[0], shares.items(), strict=True):
        parts = [*share[list(drawn)], *([share[rare].sum(0)] if rare else []), share[-1]]
        panel.stackplot(steps, parts, labels=labels, colors=colours, linewidth=0)
        panel.set_title(name)
        panel.set_xlim(steps[0], steps[-1] if len(steps) > 1 else steps[0] + 1)
        figures.thousands(panel)
        figures.percentages(panel)
    figures.legend_below(figure, axes[0, 0], columns=2)
    return figure
