"""The figure across variants of EXor: the price of tying of every seed in every variant."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.plot import Plot
from tiejax.statistics.arms import ARMS

CAPTION = (
    "Price of tying, the difference of the exact cross-entropies of the tied and the untied model of a seed, in every variant: "
    "a dot per seed and a line between the same seed's dots; black: mean and 95 % interval. Right of 0 the tied model has the "
    "higher loss."
)


def plot_all(results: Mapping[str, Any]) -> Sequence[Plot]:
    """Return the figures of a run of several variants; none without exact risk."""
    prices = {name: price_by_seed(entry) for name, entry in results["runs"].items() if entry["cross_entropy"] is not None}
    return [plot_prices(prices, results["claims"])] if prices else []


def price_by_seed(entry: Mapping[str, Any]) -> np.ndarray:
    """Return the difference of the final losses of each seed, tied - untied; NaN if one of the two diverged."""
    untied, tied = (np.array(entry["cross_entropy"][arm], float) for arm in ARMS)
    return np.asarray(tied - untied)


def plot_prices(prices: Mapping[str, np.ndarray], claims: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot prices `[seed]` by variant, with the estimates and intervals of the claims about them."""
    figure, axes = figures.new_figure(1, 1, 6.4, 1 + 0.4 * len(prices))
    panel = axes[0, 0]
    values = np.stack(list(prices.values()))
    drawn = figures.drawn_seeds(values.shape[1])
    opacity = float(np.clip(6 / len(drawn), 0.1, 0.5))
    panel.plot(values[:, drawn], range(len(values)), color="grey", alpha=opacity, linewidth=0.6)
    by_id = {row["id"]: row for row in claims}
    for place, (name, of_variant) in enumerate(prices.items()):
        panel.plot(of_variant[drawn], np.full(len(drawn), place), "o", color=figures.BLUE, alpha=0.5, markersize=3)
        row = by_id.get(f"tying-costs/{name}") or by_id.get(f"tying-free/{name}")
        if row is not None and row["interval"] is not None and None not in row["interval"]:
            panel.hlines(place + 0.25, *row["interval"], color="black", linewidth=1.5)
            panel.plot(row["estimate"], place + 0.25, "s", color="black", markersize=4)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_yticks(range(len(prices)), list(prices))
    panel.set_ylim(len(prices) - 0.4, -0.6)
    panel.set_xlabel("cross-entropy, tied - untied (nats)")
    if len(drawn) < values.shape[1]:
        panel.set_title(f"{len(drawn)} of {values.shape[1]} seeds drawn", fontsize=7, color="grey", loc="right")
    return Plot("prices", CAPTION, figure)
