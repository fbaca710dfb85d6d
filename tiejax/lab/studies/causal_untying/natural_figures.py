"""The figure of natural pairs, with a caption."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting.figures import BLUE, GREEN, ORANGE, PURPLE, legend_below, new_figure
from tiejax.lab.reporting.plot import Plot
from tiejax.lab.studies.causal_untying.natural import LISTS

COLOURS = dict(zip(LISTS, (GREEN, BLUE, ORANGE, PURPLE), strict=True))
LABELLED = 6  # pairs of each list, at most


def plot_pairs(natural: Mapping[str, Any]) -> Plot:
    """Plot the semantic over the conditional distance of every pair."""
    figure, axes = new_figure(1, 1, 7.2, 5.2)
    panel = axes[0, 0]
    for name in (None, *LISTS):
        rows = [pair for pair in natural["pairs"] if pair["list"] == name and pair["semantic"] is not None]
        if not rows:
            continue
        x, y = (np.array([pair[field] for pair in rows], float) for field in ("conditional", "semantic"))
        panel.plot(x, y, "o", color=COLOURS.get(name or "", "lightgrey"), markersize=4, label=name or "other")
        for pair in rows[: LABELLED if name else 0]:
            words = " / ".join(pair["words"])
            panel.annotate(words, (pair["conditional"], pair["semantic"]), (3, 3), textcoords="offset points", fontsize=6)
    panel.set_xlabel("conditional distance: |log-ratio of probabilities| that a bias leaves (nats)")
    panel.set_ylabel("semantic distance: Jensen-Shannon\ndivergence after replacement (nats)")
    panel.set_xscale("log")
    panel.set_yscale("log")
    legend_below(figure, panel, columns=3)
    return Plot(
        "natural_pairs",
        "Pairs of frequent words in models that are never tied: how much replacing one word by the other changes the next "
        "predictions, over how much their probabilities vary with the context. Means of "
        f"{len(natural['seeds'])} models; colours: lists by fifths.",
        figure,
    )
