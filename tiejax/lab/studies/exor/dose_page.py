"""The page of a dose-and-response run of EXor, from the body of results.json, and its figures, from plain arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.words import Table, count_true
from tiejax.lab.studies.exor.claim_values import TIED, UNTIED
from tiejax.lab.studies.exor.dose_response import Responses
from tiejax.lab.studies.exor.page import described, diverged_notes
from tiejax.statistics.arms import ARMS

QUESTION = (
    "Two spellings of bit 0 have the same meaning and occur with probabilities p and 1 - p. In theory, an optimal model "
    "without a bias of the logits has |e1 - e2| |h| >= |ln(p / (1 - p))|. How far apart do solved "
    "models keep the two output vectors, and what does tying cost?"
)
TITLE = "Numbers: medians over seeds, exact cross-entropy (nats) of the training split"


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to the page's question, then the counts of verdicts."""
    claims = results["claims"]
    strongest = max((entry["p"] for entry in results["doses"]), key=lambda p: abs(p - 0.5))
    answer = openings(claims, ["dose-cost", f"tying-costs/{strongest:g}"])
    return [*([answer] if answer else []), tally(claims)]


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the table of the report, one row per dose: medians over seeds, and the numbers of solved models."""

    def row(entry: Mapping[str, Any]) -> list[str]:
        doses = [f"{entry['p']:g}", f"{entry['bayes_cross_entropy']:.4f}"]
        losses = [_median(entry["final"][arm]["exact_cross_entropy"]["train"]) for arm in ARMS]
        return [*doses, *losses, *(count_true(entry["solved"][arm]) for arm in ARMS)]

    headings = ["p", "Bayes", *(f"cross-entropy, {arm}" for arm in ARMS), *(f"solved, {arm}" for arm in ARMS)]
    return {TITLE: (headings, [row(entry) for entry in results["doses"]])}


def _median(losses: Sequence[float | None]) -> str:
    """Format the median of the losses of the members that did not diverge."""
    finite = [loss for loss in losses if loss is not None]
    return f"{np.median(finite):.4f}" if finite else "-"


def page(run: RunOnPage) -> str:
    """Return the HTML page of a run."""
    results, model = run.results, run.results["model"]
    setting = {
        "doses": ", ".join(f"{entry['p']:g}" for entry in results["doses"])
        + f" as the probability of the first spelling of 0; 1 is spelled with {results['one']}",
        **described(run, " per dose"),
    }
    return render(
        run,
        title=f"EXor, dose and response: tied against untied, {model['architecture']} {model['size']}",
        question=QUESTION,
        finding=finding(results),
        setting=setting,
        notes=diverged_notes(results),
        claims={"Claims": results["claims"]},
        numbers=tables(results),
    )


def plot_dose_gap(responses: Responses) -> figures.Plot:
    """Plot the gap of each arm at each dose against the bound of the theory."""
    figure, axes = figures.new_figure(1, len(ARMS), 4.2 * len(ARMS), 3.6, share_y=True)
    order = np.argsort(responses.bound)
    bound = responses.bound[order]
    for arm, (panel, name) in enumerate(zip(axes[0], ARMS, strict=True)):
        gap, solved = responses.gap[order, arm], responses.solved[order, arm]
        _scatter(panel, bound, gap, solved, figures.ARM_COLOURS[name])
        medians = [np.median(row[mark]) if mark.any() else np.nan for row, mark in zip(gap, solved, strict=True)]
        panel.plot(bound, medians, color=figures.ARM_COLOURS[name], linewidth=2)
        panel.axline((0, 0), slope=1, color="black", linewidth=1, linestyle="--")
        panel.set_title(name)
        panel.set_xlabel("|ln(p / (1 - p))|")
        panel.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("smallest |e1 - e2| |h|")
    return figures.Plot(
        "dose_gap",
        "Distance of the two spellings of 0 in the output table: the smallest |e1 - e2| |h| over contexts, against its "
        "bound in an optimal model (dashed; none with an output bias). One dot per seed, filled if it solved the task; "
        "line: median of solved seeds.",
        figure,
    )


def plot_dose_cost(responses: Responses) -> figures.Plot:
    """Plot the excess loss by arm, the cost of tying, and the share of solved seeds, against the dose."""
    figure, axes = figures.new_figure(2, 2, 8.4, 6.0)
    order = np.argsort(responses.doses)
    doses, excess, solved = responses.doses[order], responses.excess[order], responses.solved[order]
    for arm, (panel, name) in enumerate(zip(axes[0], ARMS, strict=True)):
        _scatter(panel, doses, excess[:, arm], solved[:, arm], figures.ARM_COLOURS[name])
        panel.plot(doses, np.median(excess[:, arm], axis=1), color=figures.ARM_COLOURS[name], linewidth=2)
        panel.set_title(f"loss over Bayes (nats), {name}")
        axes[1, 1].plot(doses, solved[:, arm].mean(axis=1), "o-", color=figures.ARM_COLOURS[name], label=name)
    top = max(panel.get_ylim()[1] for panel in axes[0])
    for panel in axes[0]:
        panel.set_ylim(bottom=0, top=top)
    cost = excess[:, TIED] - excess[:, UNTIED]
    _scatter(axes[1, 0], doses, cost, np.ones_like(cost, dtype=bool), figures.GREEN)
    axes[1, 0].plot(doses, np.median(cost, axis=1), color=figures.GREEN, linewidth=2)
    axes[1, 0].axhline(0, color="black", linewidth=0.8, linestyle=":")
    axes[1, 0].set_title("cost of tying (nats), tied - untied")
    axes[1, 1].set_title("seeds that solve the task")
    figures.percentages(axes[1, 1])
    axes[1, 1].legend(frameon=False)
    for panel in axes.flat:
        panel.set_xlabel("p")
    return figures.Plot(
        "dose_cost",
        "Exact cross-entropy on the training split, less that of the Bayes predictor, and the cost of tying, against the "
        "probability p of the first spelling of 0. One dot per seed; line: median; bottom right: share of seeds that solve "
        "the task.",
        figure,
    )


def _scatter(axes: Axes, x: np.ndarray, values: np.ndarray, filled: np.ndarray, colour: str) -> None:
    """Plot `[x, seed]` as dots, filled where `filled`."""
    places = np.repeat(x[:, None], values.shape[1], axis=1)
    axes.scatter(places[filled], values[filled], s=12, color=colour, alpha=0.5, linewidths=0)
    axes.scatter(places[~filled], values[~filled], s=12, facecolors="none", edgecolors=colour, alpha=0.35, linewidths=0.7)
