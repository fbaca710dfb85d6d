"""The figures of a run, on plain or planted text, with captions."""

import functools
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tiejax.lab.comparison.figures import colours as colours_of
from tiejax.lab.comparison.figures import over_seeds, plot_course, plot_rows, plot_uses
from tiejax.lab.comparison.segments import step_at
from tiejax.lab.comparison.training import Arrays
from tiejax.lab.reporting import figures
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.claims import MARGIN, curve, gaps, rank_words
from tiejax.lab.studies.causal_untying.natural import LISTS
from tiejax.lab.studies.causal_untying.planted_claims import TABLES, Planted
from tiejax.text.planted_pairs import CHOICES

FIXED = {
    plan.TIED: figures.ORANGE, plan.NEVER_EQUAL: figures.BLUE, plan.NEVER_INDEPENDENT: figures.SKY,
    plan.WIDE: figures.YELLOW, plan.DEEP: "sienna", plan.FACTORISED: "silver",
}  # fmt: skip
FORKS = (figures.GREEN, figures.PURPLE, "black", "grey")
OTHER_SIZES = (plan.WIDE, plan.DEEP, plan.FACTORISED)
USES = {"ratio": "|g_output| / |g_input|", "cosine": "cosine of g_input and g_output", "distance": "|E_in - E_out| / |E_in|"}
USES_CAPTION = (
    "Gradients of the two tables, and the distance between the tables, over training: medians over seeds. g_input and "
    "g_output are the gradients with respect to the table in its use as input and as output; dotted: the steps of unties."
)
colours = functools.partial(colours_of, fixed=FIXED, others=FORKS)
APART = -0.16  # place of the arm that is not part of the curve


def is_primary(arm: str) -> bool:
    """Return whether an arm is of the whole run, and neither exploratory nor of the control."""
    return "cosine" not in arm and "@" not in arm and not arm.startswith(plan.EXPLORE)


def plot_all(arrays: Arrays, results: Mapping[str, Any], planted: Planted | None = None) -> list[figures.Plot]:
    """Return all figures; planted: of a run on planted text."""
    losses = {arm: np.array(row["loss"], float) for arm, row in results["arms"].items() if is_primary(arm)}
    shown = {arm: colour for arm, colour in colours(list(losses)).items() if arm not in (plan.NEVER_INDEPENDENT, *OTHER_SIZES)}
    forks, bounds = {arm: _fork_step(arm, results["steps"]) for arm in losses}, {"bigram": results["bigram"]["losses"]["1"]}
    return [
        *([plot_distances(planted, list(results["arms"])), plot_excess(results["arms"])] if planted is not None else []),
        plot_final(losses),
        plot_course(arrays, shown, plan.TIED, "nats a token", forks, bounds)._replace(name="since_untying"),
        plot_uses(arrays, USES, forks, shown, USES_CAPTION),
        plot_frequency(results),
        *([plot_lengths(results)] if len(results["bigram"]["losses"]) > 1 else []),
        *([plot_pairs(results["natural"])] if "natural" in results else []),
    ]


def _fork_step(arm: str, steps: int) -> int:
    written = arm.partition("untie-")[2]
    return step_at(Fraction(written), steps) if written else 0


def _plot_over(panel: Axes, found: Mapping[float, np.ndarray], colour: str, label: str | None = None) -> None:
    """Plot a dot for each finite value above its x, and a line with bars at their means; found: x -> `[seed]`."""
    for x, values in found.items():
        panel.plot(np.full(len(values), x), values, "o", color=colour, alpha=0.4, markersize=4, markeredgewidth=0)
    means = [over_seeds(np.mean, values[np.isfinite(values)]) for values in found.values()]
    panel.plot([*found], means, "-_", color=colour, linewidth=1, markersize=14, markeredgewidth=2.5, label=label)


def plot_final(losses: Mapping[str, np.ndarray]) -> figures.Plot:
    """Plot the final loss less that of the tied model of the seed over the tied fraction of the run."""
    figure, axes = figures.new_figure(1, 1, 6.4, 3.8)
    panel, (fractions, arms) = axes[0, 0], curve(losses)
    x = [float(fraction) for fraction in fractions]
    panel.axhspan(-MARGIN, MARGIN, color="grey", alpha=0.15, linewidth=0)
    panel.axhline(0, color="black", linewidth=0.8)
    _plot_over(panel, {place: losses[arm] - losses[plan.TIED] for place, arm in zip(x, arms, strict=True)}, figures.BLUE)
    _plot_over(panel, {APART: losses[plan.NEVER_INDEPENDENT] - losses[plan.TIED]}, figures.SKY)
    names = {plan.NEVER_EQUAL: "never,\nequal", plan.TIED: "always"}
    labels = [names.get(arm, str(fraction)) for arm, fraction in zip(arms, fractions, strict=True)]
    panel.set_xticks([APART, *x], ["never,\nindependent", *labels], fontsize=8)
    panel.set_xlabel("share of the run for which the tables are tied")
    panel.set_ylabel("final loss - that of always tied (nats a token);\nbelow 0: lower than always tied")
    return figures.Plot(
        "final",
        "Final validation loss less that of the always tied model of the same seed: a dot per seed, bars and line: means. "
        f"Shaded: the margin of {MARGIN:g} nats.",
        figure,
    )


def plot_frequency(results: Mapping[str, Any]) -> figures.Plot:
    """Plot final losses less those of tied models by token frequency."""
    names = results["frequency_ranks"]
    arms = {arm: np.array(row["by_frequency"], float) for arm, row in results["arms"].items() if is_primary(arm)}
    figure, panels = figures.grid(len(names), 4, 3.2, 3.4)
    others = [arm for arm in arms if arm != plan.TIED]
    colour_of = colours(list(arms))
    for number, (panel, name) in enumerate(zip(panels, names, strict=True)):
        panel.axvline(0, color="black", linewidth=0.8)
        plot_rows(panel, {arm: arms[arm][:, number] - arms[plan.TIED][:, number] for arm in others}, colour_of)
        panel.tick_params("y", labelsize=8)
        panel.set_title(rank_words(name), fontsize=10)
        panel.set_xlabel("loss - that of tied (nats)")
    return figures.Plot(
        "frequency",
        "Final validation loss less that of the tied model of the seed, by the frequency rank of the predicted token: a dot "
        "per seed, bars: means. A description: these differences are not tested.",
        figure,
    )


LENGTH_ARMS = {plan.TIED: figures.ORANGE, plan.untied_at(plan.LATE): figures.GREEN, plan.NEVER_INDEPENDENT: figures.SKY}


def plot_lengths(results: Mapping[str, Any]) -> figures.Plot:
    """Plot final losses, and those of always tied models less those of others, over the number of steps."""
    figure, axes = figures.new_figure(1, 2, 9.2, 4.2)
    whole, gap = axes[0]
    losses = {arm: np.array(row["loss"], float) for arm, row in results["arms"].items()}
    of_bigram = {Fraction(written): loss for written, loss in results["bigram"]["losses"].items()}
    steps = {length: float(length) * results["steps"] for length in of_bigram}
    whole.plot([*steps.values()], [*of_bigram.values()], "k:", linewidth=1, label="bigram")
    gap.axhspan(-MARGIN, MARGIN, color="grey", alpha=0.15, linewidth=0)
    gap.axhline(0, color="black", linewidth=0.8)
    for arm, colour in LENGTH_ARMS.items():
        names = {length: plan.at_length(arm, length) for length in steps}
        found = {steps[length]: losses[name] for length, name in names.items() if name in losses}
        _plot_over(whole, found, colour, arm)
        if arm != plan.TIED:
            less = {steps[length]: values for length, values in gaps(losses, plan.TIED, arm).items()}
            _plot_over(gap, less, colour, arm)
    for panel, label in ((whole, "final loss (nats a token)"), (gap, "final loss of tied - that of the arm (nats a token)")):
        panel.set_xscale("log", base=2)
        panel.set_xticks([*steps.values()], [f"{step:,.0f}" for step in steps.values()], fontsize=8)
        panel.minorticks_off()
        panel.set_xlabel("steps of the run")
        panel.set_ylabel(label)
    figures.legend_below(figure, whole)
    return figures.Plot(
        "lengths",
        "Final validation loss of runs of several lengths: a dot per seed, lines: means. Dotted: a bigram model of the tokens "
        "that one seed sees until then. Right: the loss of always tied models less that of the arm, of the same seed; shaded: "
        f"the margin of {MARGIN:g} nats.",
        figure,
    )


PLANTED_COLOURS = {
    plan.TIED: "grey", plan.untied_at(plan.EARLY): figures.GREEN, plan.untied_at(plan.LATE): figures.PURPLE,
    plan.NEVER_INDEPENDENT: figures.SKY,
}  # fmt: skip


def plot_distances(planted: Planted, arms: list[str]) -> figures.Plot:
    """Plot the distances of all kinds of pairs in both tables over training, relative to those at the first untie."""
    kinds = list(dict.fromkeys(planted.kinds))
    figure, axes = figures.new_figure(len(TABLES), len(kinds), 2.5 * len(kinds), 5.4)
    for row, table in zip(axes, TABLES, strict=True):
        relative_of = {arm: planted.relative(arm, table) for arm in arms}
        for panel, kind in zip(row, kinds, strict=True):
            for arm, (step, relative) in relative_of.items():
                means, colour = over_seeds(np.nanmean, relative[kind]), PLANTED_COLOURS.get(arm, "black")
                panel.plot(step, means, color=colour, linewidth=1.6, label=arm)
            for fork in curve(dict.fromkeys(arms, np.zeros(0)))[0][:-1]:
                panel.axvline(step_at(fork, planted.steps), color="black", linewidth=0.6, linestyle=":")
            panel.set_title(f"{kind}, {table} table", fontsize=9)
            figures.thousands(panel)
        row[0].set_ylabel(f"distance / that at {plan.EARLY}")
    figures.legend_below(figure, axes[0, 0])
    return figures.Plot(
        "planted_distances",
        f"Distance of the two symbols of a pair over training, relative to that at {plan.EARLY} of the run: means over pairs "
        "and seeds. Tied models have one table, shown in both rows. Dotted: the steps of unties.",
        figure,
    )


def plot_excess(arms: Mapping[str, Mapping[str, Any]]) -> figures.Plot:
    """Plot the final excess loss of the choice between the symbols of a pair, by kind of pair and arm."""
    figure, panels = figures.grid(len(CHOICES), 5, 2.6, 2.6)
    colour_of = {arm: PLANTED_COLOURS.get(arm, "black") for arm in arms}
    for number, (panel, kind) in enumerate(zip(panels, CHOICES, strict=True)):
        plot_rows(panel, {arm: np.array(row["excess"][kind], float) for arm, row in arms.items()}, colour_of)
        panel.tick_params("y", labelsize=8, labelleft=number == 0)
        panel.set_ylim(len(arms) - 0.5, -0.5)
        panel.set_xlim(0, 1.08 * panel.get_xlim()[1])
        panel.set_title(kind, fontsize=10)
    figure.supxlabel("loss of the choice - the least possible (nats)", fontsize=9)
    return figures.Plot(
        "planted_excess",
        "Final loss of the choice between the two symbols of a pair less the least possible loss, by kind of pair: a dot per "
        "seed, bars: means of each arm. cipher: a word or its cipher, which is certain given the last marker.",
        figure,
    )


LIST_COLOURS = dict(zip(LISTS, (figures.GREEN, figures.BLUE, figures.ORANGE, figures.PURPLE), strict=True))
LABELLED = 6  # pairs of each list, at most


def plot_pairs(natural: Mapping[str, Any]) -> figures.Plot:
    """Plot the semantic over the conditional distance of every pair."""
    figure, axes = figures.new_figure(1, 1, 7.2, 5.2)
    panel = axes[0, 0]
    for name in (None, *LISTS):
        rows = [pair for pair in natural["pairs"] if pair["list"] == name and pair["semantic"] is not None]
        if not rows:
            continue
        x, y = (np.array([pair[field] for pair in rows], float) for field in ("conditional", "semantic"))
        panel.plot(x, y, "o", color=LIST_COLOURS.get(name or "", "lightgrey"), markersize=4, label=name or "other")
        for pair in rows[: LABELLED if name else 0]:
            words = " / ".join(pair["words"])
            panel.annotate(words, (pair["conditional"], pair["semantic"]), (3, 3), textcoords="offset points", fontsize=6)
    panel.set_xlabel("conditional distance: |log-ratio of probabilities| that a bias leaves (nats)")
    panel.set_ylabel("semantic distance: Jensen-Shannon\ndivergence after replacement (nats)")
    panel.set_xscale("log")
    panel.set_yscale("log")
    figures.legend_below(figure, panel, columns=3)
    return figures.Plot(
        "natural_pairs",
        "Pairs of frequent words in models that are never tied: how much replacing one word by the other changes the next "
        "predictions, over how much their probabilities vary with the context. Means of "
        f"{len(natural['seeds'])} models; colours: lists by fifths.",
        figure,
    )
