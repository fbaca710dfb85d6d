"""The figure of runs side by side: the effect sizes of all runs, claim by claim."""

from collections.abc import Mapping
from typing import Any

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import Plot
from tiejax.lab.studies.compare.compare import DECIDED, is_tested
from tiejax.system.visible import visible

MARKERS = ("o", "s", "^", "D", "v", "P")


def plot_all(results: Mapping[str, Any]) -> list[Plot]:
    """Plot the effect size of every tested claim in every run; no figure if there is none."""
    claims = [
        claim for claim in results["claims"] if is_tested(claim) and any(_effect(row) is not None for row in claim["rows"])
    ]
    if not claims:
        return []
    figure, axes = figures.new_figure(1, 1, 7.0, 1.2 + 0.32 * len(claims))
    panel = axes[0, 0]
    labels = list(results["runs"])
    for place, label in enumerate(labels):
        colour, marker = figures.SERIES[place % len(figures.SERIES)], MARKERS[place // len(figures.SERIES) % len(MARKERS)]
        offset = (place - (len(labels) - 1) / 2) * 0.6 / len(labels)
        for decided in (True, False):
            points = [
                (effect, number + offset)
                for number, claim in enumerate(claims)
                if (effect := _effect(claim["rows"][place])) is not None
                and (claim["rows"][place]["verdict"] in DECIDED) == decided
            ]
            x, y = zip(*points, strict=True) if points else ((), ())
            face = colour if decided else "white"
            # Without the space, the legend would leave out a name that begins with "_".
            name = f" {visible(label)}" if decided else None
            panel.plot(x, y, marker, color=colour, markerfacecolor=face, label=name, markersize=5)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_yticks(range(len(claims)), [claim["id"] for claim in claims])
    panel.set_ylim(len(claims) - 0.5, -0.5)
    panel.set_xlabel("standardised mean of the paired differences")
    figures.legend_below(figure, panel)
    return [Plot("effects", CAPTION, figure)]


CAPTION = (
    "Mean of the paired differences over their standard deviation, for every registered claim in every run. Filled: the run "
    "decides the claim, after its own adjustment; open: it does not."
)


def _effect(row: Mapping[str, Any] | None) -> float | None:
    return None if row is None else row["effect"]
