"""The page of a dose-and-response run of EXor, from the body of results.json."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.finding import Clause, sentence, tally
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import model_words, reproduction, timing_words, training_words
from tiejax.lab.reporting.words import count_true
from tiejax.statistics.arms import ARMS

QUESTION = (
    "Two spellings of bit 0 have the same meaning and occur with probabilities p and 1 - p. In theory, the farther p is "
    "from .5, the farther apart their output embeddings must be. Does the output table follow the theory, and what does tying "
    "cost?"
)
TITLE = "Numbers: medians over seeds, exact cross-entropy (nats) of the training split"
GROWTH = (
    *(
        Clause(
            f"dose-gap/{arm}",
            f"{arm} output tables keep the two spellings farther apart",
            f"{arm} output tables keep the two spellings closer together",
            f"whether {arm} output tables keep the two spellings farther apart",
        )
        for arm in ARMS
    ),
    Clause(
        "dose-cost",
        "tying costs more cross-entropy",
        "tying costs less cross-entropy",
        "whether tying costs more cross-entropy",
    ),
)


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to the page's question, then the counts of verdicts."""
    claims = results["claims"]
    strongest = max((entry["p"] for entry in results["doses"]), key=lambda p: abs(p - 0.5))
    cost = Clause(
        f"tying-costs/{strongest:g}",
        "tying costs {size} nats of cross-entropy",
        "tying saves {size} nats of cross-entropy",
        "whether tying costs cross-entropy",
    )
    answers = sentence(claims, GROWTH, "As p moves away from .5,"), sentence(claims, [cost], f"At p = {strongest:g},")
    answer = " ".join(filter(None, answers))
    return [*([answer] if answer else []), tally(claims)]


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the table of the report, one row per dose: medians over seeds, and the numbers of solved models."""

    def row(entry: Mapping[str, Any]) -> list[str]:
        doses = [f"{entry['p']:g}", f"{entry['bayes_cross_entropy']:.4f}"]
        if not entry["seeds"]:
            return [*doses, *["-"] * (2 * len(ARMS))]
        losses = [f"{np.median(entry['final'][arm]['exact_cross_entropy']['train']):.4f}" for arm in ARMS]
        return [*doses, *losses, *(count_true(entry["solved"][arm]) for arm in ARMS)]

    headings = ["p", "Bayes", *(f"cross-entropy, {arm}" for arm in ARMS), *(f"solved, {arm}" for arm in ARMS)]
    return {TITLE: (headings, [row(entry) for entry in results["doses"]])}


def page(run: RunOnPage) -> str:
    """Return the HTML page of a run."""
    results, settings, facts = run.results, run.settings, run.facts
    model, excluded = results["model"], results["excluded_seeds"]
    setting = {
        "doses": ", ".join(f"{entry['p']:g}" for entry in results["doses"])
        + f" as the probability of the first spelling of 0; 1 is spelled with {results['one']}",
        "model": model_words(results),
        "seeds": f"{len(results['seeds'])} per dose, each trained tied and untied from the same initial values and batches",
        "training": training_words(results, settings),
        **timing_words(results["timing"], facts),
    }
    return report.render(
        title=f"EXor, dose and response: tied against untied, {model['architecture']} {model['size']}",
        question=QUESTION,
        finding=finding(results),
        setting=setting,
        notes=[f"Excluded because a member became non-finite: seeds {excluded}."] if excluded else [],
        claims={"Claims": results["claims"]},
        figures=run.pictures,
        numbers=tables(results),
        reproduce=reproduction(run.facts, run.settings_text),
    )
