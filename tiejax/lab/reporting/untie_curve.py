"""Figures, tables and findings of an untie curve, shared by the studies that untie."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting import untie_figures
from tiejax.lab.reporting.finding import compose, listed, tally
from tiejax.lab.reporting.plot import Plot
from tiejax.lab.reporting.sections import excluded_notes, reproduction, timing_words, training_words
from tiejax.lab.reporting.words import count_and_share

Curves = Mapping[str, np.ndarray]  # curve -> indices of its arms, ordered by untie step
Table = tuple[list[str], list[list[str]]]  # columns, rows

QUESTION = (
    "A tie may help early in training and cost later. Do models that are tied up to some step and untied afterwards end with "
    "a lower loss than models that are always or never tied? Which optimizer state should the split-off table start with?"
)
SOURCE = "F. Bertolotti and W. Cazzola, ICML 2024, PMLR 235:3584-3610, for the task; untying is not part of the paper"
NOTE = (
    "Untying changes more than the tie: weight decay then acts on two tables, and the initial scale of a tied table suits one "
    "of its roles. The claims test the mean over the untie steps, so that no step is selected."
)
# Optimizer state of the table that is split off, by policy.
POLICY_WORDS = {
    "copy": "the state of the shared table",
    "zero": "zero moments and step count, so that bias correction restarts",
    "zero-keep-count": "zero moments, but the step count continues",
    "split": "the moments of the gradients of its own use, tracked from the start",
}


def plot_curve(
    body: Mapping[str, Any],
    title: str,
    curves: Curves,
    steps: np.ndarray,
    bayes: float | None,
    solved: np.ndarray | None,
) -> Plot:
    """Plot the final loss, named `title`, against the untie step, one line per policy.

    body: the result of `statistics.untie_curve.analyse`. steps: untie step of each arm. bayes: the Bayes loss.
    solved: `[arm, seed]`.
    """
    points = {entry["curve"]: entry["points"] for entry in body["curves"]}

    def lines(value: str, interval: str, scale: int = 1) -> dict[str, Any]:
        return {
            name: (steps[numbers], [p[value] / scale for p in points[name]], [p[interval] for p in points[name]])
            for name, numbers in curves.items()
        }

    independent = body["ends"]["independent"]
    shares = share_of_independent = None
    if solved is not None:
        seeds = solved.shape[1]
        shares, share_of_independent = lines("solved", "solved_interval", seeds), independent["solved"] / seeds
    return Plot(
        "untie_curve",
        "Final loss against the step at which tied models were untied: at 0, never tied (from equal tables); at the last step, "
        "always tied. Median over seeds with its 95 % bootstrap interval"
        + ("; share of seeds within .1 nat of Bayes with its 95 % Wilson interval" if shares else "")
        + ". Grey: never tied, from independent tables.",
        untie_figures.plot_untie_curve(
            title,
            lines("median", "interval"),
            (independent["median"], independent["interval"]),
            bayes,
            shares,
            share_of_independent,
        ),
    )


def plot_distances(values: Mapping[str, np.ndarray], curves: Curves, steps: np.ndarray, title: str) -> Plot:
    """Plot final distances `[arm, seed]` by pairs and table against the untie step. title: name of the distance."""
    panels = {
        panel: {name: (steps[numbers], np.median(distances[numbers], axis=1)) for name, numbers in curves.items()}
        for panel, distances in values.items()
    }
    return Plot(
        "untie_distances",
        f"Final distances of pairs ({title}; dotted: 1) against the untie step. Median over seeds.",
        untie_figures.plot_over_untie_step(panels, title),
    )


def plot_trajectories(
    record_steps: np.ndarray, loss: np.ndarray, curves: Curves, steps: np.ndarray, title: str, bayes: float | None
) -> Plot:
    """Plot the loss `[arm, seed, record]` over training, one panel per policy and one line per untie step."""
    panels = {
        name: {f"{steps[number]:,}": np.median(loss[number], axis=0) for number in numbers} for name, numbers in curves.items()
    }
    return Plot(
        "untie_trajectories",
        "The loss over training, one line per untie step (darker: later). Median over seeds. The first record, of untrained "
        "models, is omitted.",
        untie_figures.plot_trajectories(record_steps, panels, title, bayes),
    )


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report by heading: the baselines, then each curve with its differences from them."""
    if not results["curves"]:
        return {}
    ends = results["ends"]
    named = list(ends["tied"]["medians"])
    headings = ["", "loss", *_solved_heading(results), *named]
    rows = [
        [end["words"], f"{end['median']:.4f}", *_solved(results, end), *(f"{end['medians'][name]:.4f}" for name in named)]
        for end in ends.values()
    ]
    return {
        "Never and always tied: medians over seeds": (headings, rows),
        **dict(_table_of_curve(results, curve) for curve in results["curves"]),
    }


def _table_of_curve(results: Mapping[str, Any], curve: Mapping[str, Any]) -> tuple[str, Table]:
    """Return heading and table of a curve; intermediate untie steps have differences from the baselines."""
    low, high = curve["best_step_interval"]
    heading = f"{curve['curve']}: best untie step {curve['best_step']:,} (95 % {low:,} to {high:,})"
    ends, rows = results["ends"], []
    for place, (step, point) in enumerate(zip(curve["steps"], curve["points"], strict=True)):
        between = 0 < place < len(curve["steps"]) - 1
        against = [_difference(curve["against"][base][place - 1]) if between else "" for base in ends]
        interval = " to ".join("-" if bound is None else f"{bound:.4f}" for bound in point["interval"])
        rows.append([f"{step:,}", f"{point['median']:.4f}", interval, *_solved(results, point), *against])
    columns = ["untie step", "loss", "95 %", *_solved_heading(results), *(f"- {end['words']}" for end in ends.values())]
    return heading, (columns, rows)


def _difference(test: Mapping[str, Any]) -> str:
    if test["estimate"] is None:
        return "-"
    p = "" if test["p_adjusted"] is None else f", p {test['p_adjusted']:.2g}"
    return f"{test['estimate']:+.4f}{p}"


def _solved(results: Mapping[str, Any], point: Mapping[str, Any]) -> list[str]:
    return [count_and_share(point["solved"], len(results["seeds"]))] if "solved" in point else []


def _solved_heading(results: Mapping[str, Any]) -> list[str]:
    return ["solved"] if "solved" in results["ends"]["tied"] else []


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to the page's question, against both baselines, then the counts of verdicts."""
    subject, parts = "models that untie in mid-training", []
    for verdict, words in (
        ("supported", "{} end with a lower loss"),
        ("contradicted", "{} end with a higher loss"),
        ("undecided", "whether {} end with a lower loss"),
    ):
        for base, others in (("tied", "models that stay tied"), ("equal", "models that were never tied")):
            if curves := _curves_with(results, base, verdict):
                which = _for_policies(curves, len(results["curves"]), verdict)
                parts.append((f"{words.format(subject)} than {others}{which}", verdict, len(results["seeds"])))
                subject = "they"
    answer = compose(parts)
    return [*([answer] if answer else []), tally(results["claims"])]


def _curves_with(results: Mapping[str, Any], base: str, verdict: str) -> list[str]:
    """Return the curves whose claim to be better than a baseline has this verdict."""
    verdicts = {row["id"]: row["verdict"] for row in results["claims"]}
    curves = [entry["curve"] for entry in results["curves"]]
    return [curve for curve in curves if verdicts.get(f"untying-helps/{base}/{curve.replace(', new ', '-')}") == verdict]


def _for_policies(curves: Sequence[str], all_curves: int, verdict: str) -> str:
    """Return a phrase that names the policies of these curves; empty if there is only one."""
    if len(curves) == all_curves:
        return "" if all_curves == 1 or verdict == "undecided" else " under every policy"
    # Use parentheses, since a comma would look like the end of a name.
    names = [re.sub(", (.*)", r" (\1)", curve) for curve in curves]
    return f" for {listed(names)}"


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
        title=title,
        question=QUESTION,
        finding=finding(results),
        setting={**setting, **shared, **timing_words(results["timing"], run.facts)},
        notes=[*excluded_notes(results), NOTE],
        claims={"Claims": results["claims"]},
        figures=run.pictures,
        numbers=tables(results),
        reproduce=reproduction(run.facts, run.settings_text),
    )
