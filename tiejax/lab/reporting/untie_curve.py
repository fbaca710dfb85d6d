"""Figures, tables and findings of an untie curve, shared by the studies that untie."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from tiejax.lab.reporting import figures
from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.finding import gate_sentences, openings, tally
from tiejax.lab.reporting.sections import excluded_notes, training_words
from tiejax.lab.reporting.words import Table, count_and_share, formatted

Curves = Mapping[str, np.ndarray]  # curve -> indices of its arms, ordered by untie step
Line = tuple[np.ndarray, Sequence[float], Sequence[Sequence[float]]]  # x, y, band (low, high) of each

QUESTION = (
    "A tie may help early in training and cost later. Do models that are tied up to some step and untied afterwards end with "
    "a lower loss than models that are always or never tied? Which optimizer state should the split-off table start with?"
)
SOURCE = "F. Bertolotti and W. Cazzola, ICML 2024, PMLR 235:3584-3610, for the task; untying is not part of the paper"
NOTE = (
    "Untying changes more than the tie: weight decay then acts on two tables, and both roles of a tied table start at one "
    "scale. The claims test the mean over the untie steps, so that no step is selected; single steps, and differences "
    "between steps or policies, are not tested."
)
# Optimizer state of the table that is split off, by policy.
POLICY_WORDS = {
    "copy": "the state of the shared table",
    "zero": "zero moments and step count, so that bias correction restarts",
    "zero-keep-count": "zero moments, but the step count continues",
    "split": "the moments of the gradients of its own use, tracked from the start",
}


def plot_curve(
    body: Mapping[str, Any], title: str, curves: Curves, steps: np.ndarray, bayes: float | None, bigram: float | None = None
) -> figures.Plot:
    """Plot the final loss, named `title`, against the untie step, one line per policy, above the share of solved seeds.

    body: the result of `statistics.untie_curve.analyse`. steps: untie step of each arm. bayes: the Bayes loss. bigram: that of
    a bigram model.
    """
    points = {entry["curve"]: entry["points"] for entry in body["curves"]}

    def lines(value: str, interval: str, scale: int = 1) -> dict[str, Line]:
        return {
            name: (steps[numbers], [p[value] / scale for p in points[name]], [p[interval] for p in points[name]])
            for name, numbers in curves.items()
        }

    independent = body["ends"]["independent"]  # the baseline with independent tables, which is not a point of the curve
    solved = "solved" in independent
    figure, axes = figures.new_figure(1 + solved, 1, 9.2, 3.6 * (1 + solved))
    above = axes[0, 0]
    above.axhline(independent["mean"], color="grey", linewidth=1.2, label="never tied, independent tables")
    if np.isfinite(independent["band"]).all():
        above.axhspan(*independent["band"], color="grey", alpha=0.15, linewidth=0)
    _plot_references(above, bayes, bigram)
    _plot_bands(above, lines("mean", "band"))
    above.set_ylabel(title)
    if solved:
        below, seeds = axes[1, 0], len(independent["loss"])
        below.axhline(independent["solved"] / seeds, color="grey", linewidth=1.2)
        _plot_bands(below, lines("solved", "solved_band", seeds))
        figures.percentages(below)
        below.set_ylabel("seeds that solve the task")
    figures.legend_below(figure, above, columns=3)
    return figures.Plot(
        "untie_curve",
        "Final loss against the step at which tied models were untied: at 0, never tied (from equal tables); at the last step, "
        "always tied. Mean over seeds with a simultaneous 95 % band over all arms"
        + ("; share of seeds that solved the task, with simultaneous 95 % Wilson intervals" if solved else "")
        + ". Grey: never tied, from independent tables.",
        figure,
    )


def plot_trajectories(
    record_steps: np.ndarray,
    loss: np.ndarray,
    curves: Curves,
    steps: np.ndarray,
    title: str,
    bayes: float | None,
    bigram: float | None = None,
) -> figures.Plot:
    """Plot the loss `[arm, seed, record]` over training, one panel per policy and one line per untie step."""
    figure, axes = figures.grid(len(curves), 2, 4.2, 2.9, below=0.3)
    for panel, (name, arms) in zip(axes, curves.items(), strict=True):
        colours = mpl.colormaps["viridis_r"](np.linspace(0.05, 1, len(arms)))
        for colour, arm in zip(colours, arms, strict=True):
            mean = loss[arm].mean(axis=0)
            panel.plot(record_steps[1:], mean[1:], color=colour, linewidth=1.2, label=f"{steps[arm]:,}")
        _plot_references(panel, bayes, bigram)
        panel.set_title(name)
        panel.set_ylabel(title)
        figures.thousands(panel)
    figures.legend_below(figure, axes[0])
    return figures.Plot(
        "untie_trajectories",
        "The loss over training, one line per untie step (darker: later). Mean over seeds. The first record, of untrained "
        "models, is omitted.",
        figure,
    )


def _plot_references(axes: Axes, bayes: float | None, bigram: float | None) -> None:
    """Plot the Bayes loss as a dashed line and that of a bigram model as a dotted one, each unless it is None."""
    for label, loss, line in (("Bayes", bayes, "--"), ("bigram", bigram, ":")):
        if loss is not None:
            axes.axhline(loss, color="black", linewidth=1, linestyle=line, label=label)


def _plot_bands(axes: Axes, lines: Mapping[str, Line]) -> None:
    """Plot lines with bars for their bands, shifted slightly so that the bars do not overlap."""
    for number, (name, (x, y, bands)) in enumerate(lines.items()):
        low, high = np.array(bands, dtype=float).T
        shift = (number - (len(lines) - 1) / 2) * 0.008 * np.ptp(x)
        inside = np.r_[0, np.full(len(x) - 2, shift), 0]
        colour = figures.SERIES[number % len(figures.SERIES)]
        axes.plot(x + inside, y, "o-", color=colour, linewidth=1.6, markersize=3.5, label=name)
        axes.vlines(x + inside, low, high, color=colour, linewidth=1, alpha=0.6)
    figures.thousands(axes)
    axes.set_xlabel("untied at step")


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report by heading: the baselines, then each curve with its differences from them."""
    if not results["curves"]:
        return {}
    ends = results["ends"]
    named = list(ends["tied"]["means"])
    headings = ["", "loss", *_solved_heading(results), *named]
    rows = [
        [end["words"], formatted(end["mean"]), *_solved(end), *(formatted(end["means"][name]) for name in named)]
        for end in ends.values()
    ]
    if "bigram" in results:
        rows.append(["bigram model", formatted(results["gate"]["bigram"]), *["-"] * (len(headings) - 2)])
    return {
        "Never and always tied: means over seeds": (headings, rows),
        **dict(_table_of_curve(results, curve) for curve in results["curves"]),
    }


def _table_of_curve(results: Mapping[str, Any], curve: Mapping[str, Any]) -> tuple[str, Table]:
    """Return heading and table of a curve; intermediate untie steps have differences from the baselines."""
    ends, rows = results["ends"], []
    for place, (step, point) in enumerate(zip(curve["steps"], curve["points"], strict=True)):
        between = 0 < place < len(curve["steps"]) - 1
        against = [_difference(curve["against"][base][place - 1]) if between else "" for base in ends]
        rows.append([f"{step:,}", formatted(point["mean"]), band(point["band"]), *_solved(point), *against])
    columns = ["untie step", "loss", "95 % band", *_solved_heading(results), *(f"- {end['words']}" for end in ends.values())]
    return f"{curve['curve']}: means over seeds, with simultaneous 95 % bands", (columns, rows)


def band(ends: Sequence[float | None], form: str = ".4f") -> str:
    """Format the two ends of a band."""
    return " to ".join(formatted(end, form) for end in ends)


def _difference(difference: Mapping[str, Any]) -> str:
    if difference["band"][0] is None:
        return formatted(difference["estimate"], "+.4f")
    return f"{formatted(difference['estimate'], '+.4f')} ({band(difference['band'], '+.4f')})"


def _solved(point: Mapping[str, Any]) -> list[str]:
    return [count_and_share(point["solved"], len(point["loss"]))] if "solved" in point else []


def _solved_heading(results: Mapping[str, Any]) -> list[str]:
    return ["solved"] if "solved" in results["ends"]["tied"] else []


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answers to the page's question, against each baseline, then the counts of verdicts."""
    answers = [openings(results["claims"], [curve["claims"][base] for curve in results["curves"]]) for base in results["ends"]]
    failed, compared = gate_sentences(results)
    return [*filter(None, [failed, *answers, compared]), tally(results["claims"])]


def _describe_policies(results: Mapping[str, Any]) -> str:
    """Describe the policies of a run."""
    policies = dict.fromkeys(entry["curve"].split(",")[0] for entry in results["curves"])
    return "; ".join(f"{policy}: {POLICY_WORDS[policy]}" for policy in policies) or "-"


def render(title: str, setting: Mapping[str, str], run: report.RunOnPage) -> str:
    """Return the HTML page of a run that unties. setting: the study's description of its task and model."""
    results = run.results
    shared = {
        "seeds": f"{len(results['seeds'])}; all arms of a seed share batches and, where possible, initial values",
        "untied at": ", ".join(f"{step:,}" for step in results["curves"][0]["steps"][1:-1]) if results["curves"] else "-",
        "optimizer state of the split-off table": _describe_policies(results),
        "training": training_words(results, run.settings),
        "source": SOURCE,
    }
    return report.render(
        run,
        title=title,
        question=QUESTION,
        finding=finding(results),
        setting={**setting, **shared},
        notes=[*excluded_notes(results), NOTE],
        claims={"Claims": results["claims"]},
        numbers=tables(results),
    )
