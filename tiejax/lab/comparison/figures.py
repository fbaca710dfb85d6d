"""The figures of a comparison, with captions."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tiejax.lab.comparison.training import Arrays
from tiejax.lab.reporting import figures

FIXED = {"tied": figures.ORANGE, "untied": figures.BLUE}
OTHERS = (figures.GREEN, figures.PURPLE, figures.SKY, figures.YELLOW, "black", "grey")
USES = {
    "ratio": "|g_target| / |g_source|",
    "cosine": "cosine of g_source and g_target",
    "distance": "|T(source) - target| / |T(source)|",
}
USES_CAPTION = (
    "Gradients of the two leaves of the tie, and the distance between them, over training: medians over seeds. g_source "
    "and g_target are the gradients with respect to the two uses; dotted: the steps at which ties end or begin."
)
NO_BOUNDS: Mapping[str, float] = {}
EARLY = 0.1  # share of the run that the curves of differences leave out


def colours(arms: Sequence[str], fixed: Mapping[str, str] = FIXED, others: Sequence[str] = OTHERS) -> dict[str, str]:
    """Return a colour for every arm: a fixed one, or the next of the others."""
    rest = [arm for arm in arms if arm not in fixed]
    return {arm: fixed[arm] if arm in fixed else others[rest.index(arm) % len(others)] for arm in arms}


def plot_all(arrays: Arrays, results: Mapping[str, Any]) -> list[figures.Plot]:
    """Return all figures: final losses, their course, and the two uses where they were recorded."""
    losses = {arm: np.array(row["loss"], float) for arm, row in results["arms"].items()}
    plots = [plot_final(losses, results["baseline"], results["unit"], results["margin"])]
    bounds = {"gate": results["gate"]["bigram"]} if "gate" in results else {}
    plots.append(plot_course(arrays, colours(list(losses)), results["baseline"], results["unit"], results["forks"], bounds))
    if any(f"{arm}/train_distance" in arrays for arm in losses):
        shown = {name: title for name, title in USES.items() if any(f"{arm}/train_{name}" in arrays for arm in losses)}
        plots.append(plot_uses(arrays, shown, results["forks"], colours(list(losses)), USES_CAPTION))
    return plots


def plot_final(losses: Mapping[str, np.ndarray], baseline: str, unit: str, margin: float | None) -> figures.Plot:
    """Plot the final loss of every arm less that of the first one, a dot for each seed."""
    others = [arm for arm in losses if arm != baseline]
    figure, axes = figures.new_figure(1, 1, 6.4, 1.4 + 0.5 * max(1, len(others)))
    panel, colour_of = axes[0, 0], colours(list(losses))
    panel.axvline(0, color="black", linewidth=0.8)
    if margin is not None:
        panel.axvspan(-margin, margin, color="grey", alpha=0.15, linewidth=0)
    plot_rows(panel, {arm: losses[arm] - losses[baseline] for arm in others}, colour_of)
    panel.set_ylim(-0.6, len(others) - 0.4)
    panel.set_xlabel(f"final held-out loss - that of {baseline} ({unit})")
    shaded = f" Shaded: the margin of {margin:g}." if margin is not None else ""
    caption = f"Final held-out loss less that of the {baseline} model of the same seed: a dot per seed; bars: means.{shaded}"
    return figures.Plot("final", caption, figure)


def plot_rows(panel: Axes, rows: Mapping[str, np.ndarray], colour_of: Mapping[str, str]) -> None:
    """Plot a row for every arm: a dot for each finite value, and a bar at their mean."""
    for place, (arm, values) in enumerate(rows.items()):
        finite = values[np.isfinite(values)]
        panel.plot(finite, np.full(len(finite), place), "o", color=colour_of[arm], alpha=0.45, markersize=5, markeredgewidth=0)
        if len(finite):
            panel.plot(finite.mean(), place, "|", color=colour_of[arm], markersize=18, markeredgewidth=2.5)
    panel.set_yticks(range(len(rows)), list(rows))


def plot_course(
    arrays: Arrays,
    colour_of: Mapping[str, str],
    baseline: str,
    unit: str,
    forks: Mapping[str, int],
    bounds: Mapping[str, float] = NO_BOUNDS,
) -> figures.Plot:
    """Plot the held-out loss of every arm over steps, and that less the loss of the baseline.

    colour_of: the colour of every arm that is shown. forks: steps of changes. bounds: losses that models should end below, by
    name.
    """
    figure, (whole, less) = figures.grid(2, 2, 4.6, 3.2, below=0.3)
    for name, bound in bounds.items():
        whole.axhline(bound, color="black", linestyle=":", linewidth=1, label=name)
    less.axhline(0, color="black", linewidth=0.8)
    for arm in colour_of:
        step, values = arrays[f"{arm}/validation_step"], arrays[f"{arm}/validation_loss"]
        later = step >= max(forks.get(arm, 0), EARLY * step[-1])
        whole.plot(step[later], over_seeds(np.nanmedian, values)[later], color=colour_of[arm], linewidth=1.5, label=arm)
        if arm == baseline:
            continue
        plot_less(less, arrays, (arm, baseline), max(forks.get(arm, 0), EARLY * step[-1]), colour_of[arm])
    whole.set_ylabel(f"held-out loss ({unit})")
    less.set_ylabel(f"held-out loss - that of {baseline}")
    for panel in (whole, less):
        figures.thousands(panel)
    figures.legend_below(figure, whole)
    caption = (
        "Held-out loss over training after its first tenth, on some of the examples. Left: medians over seeds. Right: less "
        f"the {baseline} model of the seed; thin: seeds, thick: means. An arm that changes is drawn from its change on."
    )
    return figures.Plot("course", caption, figure)


def plot_less(panel: Any, arrays: Arrays, arms: tuple[str, str], since: float, colour: str) -> None:
    """Plot the held-out loss of an arm less that of another over steps, from a step on: thin: seeds, thick: their mean."""
    (step, values), (base_step, base) = ((arrays[f"{arm}/validation_step"], arrays[f"{arm}/validation_loss"]) for arm in arms)
    common, own, of_base = np.intersect1d(step, base_step, return_indices=True)
    shown = common >= since
    differences = (values[:, own] - base[:, of_base])[:, shown]
    panel.plot(common[shown], differences.T, color=colour, alpha=0.25, linewidth=0.7)
    panel.plot(common[shown], over_seeds(np.nanmean, differences), color=colour, linewidth=2, label=arms[0])


def over_seeds(function: Callable[..., Any], values: np.ndarray) -> Any:
    """Return the mean or median of the models that have not diverged, `[record]`; NaN where all have."""
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return function(values, axis=0)


def plot_uses(
    arrays: Arrays, fields: Mapping[str, str], forks: Mapping[str, int], colour_of: Mapping[str, str], caption: str
) -> figures.Plot:
    """Plot the gradients of the two uses, and the distance of the leaves, over steps.

    fields: record -> title of its panel. forks: steps of changes. colour_of: the colour of every arm that is shown.
    """
    figure, panels = figures.grid(len(fields), 3, 4.2, 3.0, below=0.3)
    for panel, (field, title) in zip(panels, fields.items(), strict=True):
        for arm, colour in colour_of.items():
            step, values = arrays[f"{arm}/train_step"], arrays[f"{arm}/train_{field}"]
            panel.plot(step, over_seeds(np.nanmedian, values), color=colour, linewidth=1.5, label=arm)
            if fork := forks.get(arm):
                panel.axvline(fork, color=colour, linewidth=0.6, linestyle=":")
        panel.set_title(title, fontsize=10)
        figures.thousands(panel)
    figures.legend_below(figure, panels[0])
    return figures.Plot("uses", caption, figure)
