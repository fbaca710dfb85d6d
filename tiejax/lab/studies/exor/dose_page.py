"""The page of a dose-and-response run of EXor, from the body of results.json."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.looks import looks_table, parts_words
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import model_words, reproduction, timing_words, training_words
from tiejax.lab.reporting.words import count_true
from tiejax.lab.studies.exor.page import diverged_notes
from tiejax.lab.studies.exor.price_arms import changes
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
    gaps = [f"output-gap/{arm}/{strongest:g}" for arm in ARMS]
    answer = openings(claims, ["dose-cost", f"tying-costs/{strongest:g}", *gaps])
    return [*([answer] if answer else []), tally(claims)]


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
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
    results, settings, facts = run.results, run.settings, run.facts
    model = results["model"]
    setting = {
        "doses": ", ".join(f"{entry['p']:g}" for entry in results["doses"])
        + f" as the probability of the first spelling of 0; 1 is spelled with {results['one']}",
        "model": model_words(results),
        "seeds": f"{len(results['seeds'])} per dose, each trained tied and untied from the same initial values and batches",
        "training": training_words(results, settings),
        **changes(settings),
        **parts_words(results),
        **timing_words(results["timing"], facts),
    }
    return report.render(
        title=f"EXor, dose and response: tied against untied, {model['architecture']} {model['size']}",
        question=QUESTION,
        finding=finding(results),
        setting=setting,
        notes=diverged_notes(results),
        claims={"Claims": results["claims"]},
        figures=run.pictures,
        numbers=looks_table(results) | tables(results),
        reproduce=reproduction(run.facts, run.settings_text),
    )
