"""The page of an EXor run, from the body of results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.reporting import page as report
from tiejax.reporting.finding import finding
from tiejax.reporting.sections import excluded, flat, medians, model_of, performance, reproduction, training_of
from tiejax.reporting.uses import uses_table
from tiejax.statistics.arms import ARMS

# The claims that answer the question of the page.
LEAD = ("input-semantic/one", "output-conditional", "tied-conflict/one-pair", "tying-costs")


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the numbers of the report: medians and quartiles by arm, then every seed."""
    untied, tied = (flat(results["final"][arm]) for arm in ARMS)
    if not results["seeds"]:
        return {}
    shown = {"exact cross entropy, train": "cross-entropy", "exact accuracy, train": "accuracy"}
    shown |= {
        f"relative distance, {table}, {bit}": f"{bit}, {table}" for bit in ("zero", "one") for table in ("input", "output")
    }
    columns = [name for name in shown if name in untied]
    by_seed = [
        [
            str(seed),
            *("-" if np.isnan(side[name][row]) else f"{side[name][row]:.4f}" for name in columns for side in (untied, tied)),
        ]
        for row, seed in enumerate(results["seeds"])
    ]
    headings = ["seed", *(f"{shown[name]}: {side}" for name in columns for side in ARMS)]
    return {
        "Numbers: median [quartiles] over seeds, final values": medians(untied, tied),
        "Numbers: every seed (exact risk of the training split; relative distances of the pairs)": (headings, by_seed),
    }


def page(
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    settings_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run. settings: resolved; facts: environment.json; drawn: captions and PNG files."""
    bits, model, bayes, timing = results["bits"], results["model"], results["bayes"], results["timing"]
    setting = {
        "variant": f"{results['variant']}: 0 is spelled with probabilities {results['zero']}, 1 with {results['one']}",
        "strings": f"{2**bits - 1} of {bits} bits, {settings['batch_size'] or 'the whole training split'} a batch",
        "model": model_of(results),
        "seeds": f"{len(results['seeds'])}, each tied and untied from the same initial values on the same batches",
        "training": training_of(results, settings),
        "Bayes": f"accuracy {bayes['accuracy']:.4f}, cross-entropy {bayes['cross_entropy']:.4f} nats "
        f"(training split: {bayes['splits']['train']['accuracy']:.4f}, {bayes['splits']['train']['cross_entropy']:.4f})",
        "source": "F. Bertolotti and W. Cazzola, By Tying Embeddings You Are Assuming the Distributional Hypothesis, "
        "ICML 2024, PMLR 235:3584-3610",
    }
    setting |= performance(timing, facts)
    notes = excluded(results)
    both = len(results["solved_pairs"])
    if results["solved"]:
        counts = {name: f"{sum(values)} of {len(values)}" for name, values in results["solved"].items()}
        setting["solved"] = (
            f"untied {counts['untied']}, tied {counts['tied']}; both of a pair {both} "
            "(exact cross-entropy within .1 nat of Bayes)"
        )
    else:
        notes.append("There is no exact risk: the task has too many contexts, or no seed stayed finite.")
    return report.render(
        title=f"EXor, {results['variant']}: tied against untied, {model['architecture']} {model['size']}",
        question="Two spellings of a bit mean the same. Do input, output and tied embeddings draw them together, also where "
        "they are not equally likely, so that the distributional hypothesis (DH) fails? And what does tying cost there?",
        finding=finding(results["claims"], LEAD),
        setting=setting,
        notes=notes,
        claims={
            "Claims": results["claims"],
            f"The same among the {both} pairs that both solved the task": results["claims_solved_pairs"],
        },
        figures=drawn,
        numbers=tables(results) | uses_table(results["uses"], ARMS),
        reproduce=reproduction(facts, settings_text),
    )
