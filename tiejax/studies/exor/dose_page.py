"""The figures and the page of a dose-and-response run of EXor, from plain arrays and the body of results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.reporting import figures
from tiejax.reporting import page as report
from tiejax.reporting.finding import finding
from tiejax.reporting.plot import Plot
from tiejax.reporting.sections import model_of, performance, reproduction, training_of
from tiejax.statistics.arms import ARMS
from tiejax.studies.exor.dose_response import Responses


def plot_doses(responses: Responses) -> list[Plot]:
    """Plot the gap against its bound and the price of tying against the dose."""
    bound, doses, solved = responses.bound, responses.doses, responses.solved

    def sorted_by(x: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[np.argsort(x), arm] for arm, name in enumerate(ARMS)}

    return [
        Plot(
            "dose_gap",
            "How far apart the output table holds the two spellings of 0: the smallest |e1 - e2| |h| over contexts, against "
            "what the conflict asks of an optimal model (dashed). One dot a seed, filled where it solved the task; line: "
            "median of the solved.",
            figures.dose_gap(np.sort(bound), sorted_by(bound, responses.gap), sorted_by(bound, solved)),
        ),
        Plot(
            "dose_cost",
            "Exact cross-entropy of the training split over Bayes, and what tying costs, against the probability p of the "
            "first spelling of 0. One dot a seed; line: median; bottom right: share of seeds within .1 nat of Bayes.",
            figures.dose_cost(np.sort(doses), sorted_by(doses, responses.excess), sorted_by(doses, solved)),
        ),
    ]


def page(
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    settings_text: str,
    facts: Mapping[str, Any],
    pictures: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run. settings: resolved; facts: environment.json; pictures: captions and PNG files."""
    model, number = results["model"], len(results["seeds"])
    setting = {
        "doses": ", ".join(f"{entry['p']:g}" for entry in results["doses"])
        + f" as the probability of the first spelling of 0; 1 is spelled with {results['one']}",
        "model": model_of(results),
        "seeds": f"{number} a dose, each tied and untied from the same initial values on the same batches",
        "training": training_of(results, settings),
        **performance(results["timing"], facts),
    }
    notes = (
        [f"Left out because a member became non-finite: seeds {results['excluded_seeds']}."]
        if results["excluded_seeds"]
        else []
    )
    rows = [
        [
            f"{entry['p']:g}",
            f"{entry['bayes_cross_entropy']:.4f}",
            *(
                f"{np.median(entry['final'][name]['exact_cross_entropy']['train']):.4f}" if entry["seeds"] else "-"
                for name in ARMS
            ),
            *(f"{sum(entry['solved'][name])} of {len(entry['solved'][name])}" if entry["seeds"] else "-" for name in ARMS),
        ]
        for entry in results["doses"]
    ]
    headings = ["p", "Bayes", *(f"cross-entropy, {name}" for name in ARMS), *(f"solved, {name}" for name in ARMS)]
    return report.render(
        title=f"EXor, dose and response: tied against untied, {model['architecture']} {model['size']}",
        question="Two spellings of the bit 0 mean the same and are used with probabilities p and 1 - p. The farther p is from "
        ".5, the more the output role holds them apart. Does the output table answer as the theory says, and what does "
        "tying cost?",
        finding=finding(results["claims"], ("dose-gap/untied", "dose-gap/tied", "dose-cost")),
        setting=setting,
        notes=notes,
        claims={"Claims": results["claims"]},
        figures=pictures,
        numbers={"Numbers: medians over seeds, exact cross-entropy (nats) of the training split": (headings, rows)},
        reproduce=reproduction(facts, settings_text),
    )
