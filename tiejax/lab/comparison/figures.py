"""The figures of a comparison, with captions."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.comparison.training import Arrays
from tiejax.lab.reporting.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW, grid, legend_below, new_figure, thousands
from tiejax.lab.reporting.plot import Plot

FIXED = {"tied": ORANGE, "untied": BLUE}
OTHERS = (GREEN, PURPLE, SKY, YELLOW, "black", "grey")
USES = {
    "ratio": "|g_target| / |g_source|",
    "cosine": "cosine of g_source and g_target",
    "distance": "|T(source) - target| / |T(source)|",
}
EARLY = 0.1  # share of the run that the curves of differences leave out


def colours(arms: Sequence[str]) -> dict[str, str]:
    """Return a colour for every arm."""
    others = [arm for arm in arms if arm not in FIXED]
    return {arm: FIXED[arm] if arm in FIXED else OTHERS[others.index(arm) % len(OTHERS)] for arm in arms}


def plot_all(arrays: Arrays, results: Mapping[str, Any]) -> list[Plot]:
    """Return all figures: final losses, their course, and the two uses where they were recorded."""
    losses = {arm: np.array(row["loss"], float) for arm, row in results["arms"].items()}
    plots = [plot_final(losses, results["baseline"], results["unit"], results["margin"])]
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of means where all models diverged
        plots.append(plot_course(arrays, list(losses), results["baseline"], results["unit"], results["forks"]))
        if any(f"{arm}/train_distance" in arrays for arm in losses):
            plots.append(plot_uses(arrays, list(losses), results["forks"]))
    return plots


def plot_final(losses: Mapping[str, np.ndarray], baseline: str, unit: str, margin: float | None) -> Plot:
    """Plot the final loss of every arm less that of the first one, a dot for each seed."""
    others = [arm for arm in losses if arm != baseline]
    figure, axes = new_figure(1, 1, 6.4, 1.4 + 0.5 * max(1, len(others)))
    panel, colour_of = axes[0, 0], colours(list(losses))
    panel.axvline(0, color="black", linewidth=0.8)
    if margin is not None:
        panel.axvspan(-margin, margin, color="grey", alpha=0.15, linewidth=0)
    for place, arm in enumerate(others):
        values = losses[arm] - losses[baseline]
        values = values[np.isfinite(values)]
        panel.plot(values, np.full(len(values), place), "o", color=colour_of[arm], alpha=0.45, markersize=5, markeredgewidth=0)
        if len(values):
            panel.plot(values.mean(), place, "|", color=colour_of[arm], markersize=18, markeredgewidth=2.5)
    panel.set_yticks(range(len(others)), others)
    panel.set_ylim(-0.6, len(others) - 0.4)
    panel.set_xlabel(f"final held-out loss - that of {baseline} ({unit})")
    shaded = f" Shaded: the margin of {margin:g}." if margin is not None else ""
    caption = f"Final held-out loss less that of the {baseline} model of the same seed: a dot per seed; bars: means.{shaded}"
    return Plot("final", caption, figure)


def plot_course(arrays: Arrays, arms: Sequence[str], baseline: str, unit: str, forks: Mapping[str, int]) -> Plot:
    """Plot the held-out loss of every arm over steps, and that less the loss of the first one."""
    figure, (whole, less) = grid(2, 2, 4.6, 3.2, below=0.3)
    colour_of = colours(arms)
    base_step, base = arrays[f"{baseline}/validation_step"], arrays[f"{baseline}/validation_loss"]
    less.axhline(0, color="black", linewidth=0.8)
    for arm in arms:
        step, values = arrays[f"{arm}/validation_step"], arrays[f"{arm}/validation_loss"]
        later = step >= max(forks.get(arm, 0), EARLY * step[-1])
        whole.plot(step[later], np.nanmedian(values, axis=0)[later], color=colour_of[arm], linewidth=1.5, label=arm)
        if arm == baseline:
            continue
        common, own, of_base = np.intersect1d(step, base_step, return_indices=True)
        shown = common >= max(forks.get(arm, 0), EARLY * step[-1])
        differences = (values[:, own] - base[:, of_base])[:, shown]
        less.plot(common[shown], differences.T, color=colour_of[arm], alpha=0.25, linewidth=0.7)
        less.plot(common[shown], np.nanmean(differences, axis=0), color=colour_of[arm], linewidth=2)
    whole.set_ylabel(f"held-out loss ({unit})")
    less.set_ylabel(f"held-out loss - that of {baseline}")
    for panel in (whole, less):
        thousands(panel)
    legend_below(figure, whole)
    caption = (
        "Held-out loss over training after its first tenth, on some of the examples. Left: medians over seeds. Right: less "
        f"the {baseline} model of the seed; thin: seeds, thick: means. An arm that changes is drawn from its change on."
    )
    return Plot("course", caption, figure)


def plot_uses(arrays: Arrays, arms: Sequence[str], forks: Mapping[str, int]) -> Plot:
    """Plot the gradients of the two uses, and the distance of the leaves, over steps."""
    shown = {name: title for name, title in USES.items() if any(f"{arm}/train_{name}" in arrays for arm in arms)}
    figure, panels = grid(len(shown), 3, 4.2, 3.0, below=0.3)
    colour_of = colours(arms)
    for panel, (field, title) in zip(panels, shown.items(), strict=True):
        for arm in arms:
            step, values = arrays[f"{arm}/train_step"], arrays[f"{arm}/train_{field}"]
            panel.plot(step, np.nanmedian(values, axis=0), color=colour_of[arm], linewidth=1.5, label=arm)
            if fork := forks.get(arm):
                panel.axvline(fork, color=colour_of[arm], linewidth=0.6, linestyle=":")
        panel.set_title(title, fontsize=10)
        thousands(panel)
    legend_below(figure, panels[0])
    caption = (
        "Gradients of the two leaves of the tie, and the distance between them, over training: medians over seeds. g_source "
        "and g_target are the gradients with respect to the two uses; dotted: the steps at which ties end or begin."
    )
    return Plot("uses", caption, figure)
