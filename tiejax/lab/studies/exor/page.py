"""The page of an EXor run, from the body of results.json."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.finding import Clause, sentence, tally
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import (
    arrays_in_words,
    decimal,
    excluded_notes,
    medians_table,
    model_words,
    reproduction,
    timing_words,
    training_words,
)
from tiejax.lab.reporting.uses import uses_table
from tiejax.lab.reporting.words import count_true, share
from tiejax.lab.studies.exor.symbols import Symbols
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.exor.trajectories import TABLES
from tiejax.statistics.arms import ARMS

QUESTION = (
    "Two spellings of a bit have the same meaning. Do input, output and tied embeddings bring them together, even if they are "
    "not equally likely, so that the distributional hypothesis (DH) fails? What does tying cost in that case?"
)
SOURCE = (
    "F. Bertolotti and W. Cazzola, By Tying Embeddings You Are Assuming the Distributional Hypothesis, ICML 2024, "
    "PMLR 235:3584-3610"
)
LOSSES = "Numbers: exact cross-entropy of the training split, and who solved the task"
DIGIT = {"zero": "0", "one": "1"}


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to the page's question, then the counts of verdicts and of solved models."""
    symbols = Symbols.of(EXor(results["bits"], tuple(results["zero"]), tuple(results["one"])))
    if symbols.violating:
        bit = symbols.violating
        opening = f"Where the distributional hypothesis fails, since the spellings of {DIGIT[bit]} are not equally likely,"
        clauses = [
            _drawn_together(bit),
            Clause(
                "tied-conflict/untied-input",
                "a tied table keeps them farther apart",
                "a tied table brings them closer together than an untied one",
                "whether a tied table keeps them farther apart",
            ),
            Clause(
                "tying-costs",
                "tying costs {size} nats of cross-entropy",
                "tying saves {size} nats of cross-entropy",
                "whether tying costs cross-entropy",
            ),
        ]
    else:
        bit = symbols.holding or "one"
        opening = f"Where the distributional hypothesis holds, since the spellings of {DIGIT[bit]} are equally likely,"
        clauses = [
            _drawn_together(bit),
            Clause(
                "tied-faster/input",
                "a tied table brings them together sooner",
                "a tied table brings them together later",
                "whether a tied table brings them together sooner",
            ),
        ]
    answer = sentence(results["claims"], clauses, opening)
    return [*([answer] if answer else []), " ".join([tally(results["claims"]), *_solved(results)])]


def _drawn_together(bit: str) -> Clause:
    return Clause(
        f"input-semantic/{bit}",
        "an untied input table brings them together",
        "an untied input table keeps them farther apart than symbols of different meaning",
        "whether an untied input table brings them together",
    )


def _solved(results: Mapping[str, Any]) -> list[str]:
    """Return a sentence with the numbers of solved models, if known."""
    if not results["solved"]:
        return []
    untied, tied = (f"{count_true(results['solved'][name])} {name}" for name in ARMS)
    return [f"{untied} and {tied} models solved the task, that is, came within .1 nat of the best possible predictor."]


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the report: losses by arm, medians and quartiles, every seed, gradients of each use."""
    if not results["seeds"]:
        return {}
    untied, tied = (arrays_in_words(results["final"][arm]) for arm in ARMS)
    titles = {"exact cross entropy, train": "cross-entropy", "exact accuracy, train": "accuracy"}
    titles |= {f"relative distance, {table}, {bit}": f"{bit}, {table}" for bit in ("zero", "one") for table in TABLES}
    columns = [name for name in titles if name in untied]
    by_seed = [
        [
            str(seed),
            *(decimal(name, arm[name][row]) for name in columns for arm in (untied, tied)),
        ]
        for row, seed in enumerate(results["seeds"])
    ]
    headings = ["seed", *(f"{titles[name]}: {arm}" for name in columns for arm in ARMS)]
    return {
        **_losses(results),
        "Numbers: median [quartiles] over seeds, final values": medians_table(untied, tied),
        "Numbers: every seed (exact risk of the training split; relative distances of the pairs)": (headings, by_seed),
        **uses_table(results["uses"], ARMS),
    }


def _losses(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the table of losses and Bayes losses, if exact risks were computed."""
    if not results["solved"]:
        return {}
    bayes = results["bayes"]["splits"]["train"]["cross_entropy"]
    rows = []
    for arm in ARMS:
        losses = results["final"][arm]["exact_cross_entropy"]["train"]
        rows.append([arm, f"{np.median(losses):.4f}", f"{bayes:.4f}", count_true(results["solved"][arm])])
    return {LOSSES: (["models", "cross-entropy (nats), median", "Bayes", "solved"], rows)}


def setting(results: Mapping[str, Any], settings: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the page's description of task, model and training, by name."""
    bits, bayes, train = results["bits"], results["bayes"], results["bayes"]["splits"]["train"]
    rows = {
        "variant": f"{results['variant']}: 0 is spelled with probabilities {results['zero']}, 1 with {results['one']}",
        "strings": f"{2**bits - 1} of {bits} bits; batch: {settings['batch_size'] or 'the whole training split'}",
        "model": model_words(results),
        "seeds": f"{len(results['seeds'])}, each trained tied and untied from the same initial values on the same batches",
        "training": training_words(results, settings),
        "Bayes": f"accuracy {share(bayes['accuracy'], 2)}, cross-entropy {bayes['cross_entropy']:.4f} nats "
        f"(training split: {share(train['accuracy'], 2)}, {train['cross_entropy']:.4f} nats)",
        "source": SOURCE,
        **timing_words(results["timing"], facts),
    }
    if results["solved"]:
        untied, tied = (count_true(results["solved"][name]) for name in ARMS)
        both = len(results["solved_pairs"])
        rows["solved"] = f"untied {untied}, tied {tied}, both {both} (exact cross-entropy within .1 nat of Bayes)"
    return rows


def page(run: RunOnPage) -> str:
    """Return the HTML page of a run."""
    results, settings, facts = run.results, run.settings, run.facts
    model, notes = results["model"], excluded_notes(results)
    if not results["solved"]:
        notes.append("No exact risk was computed: the task has too many contexts, or no seed stayed finite.")
    return report.render(
        title=f"EXor, {results['variant']}: tied against untied, {model['architecture']} {model['size']}",
        question=QUESTION,
        finding=finding(results),
        setting=setting(results, settings, facts),
        notes=notes,
        claims={
            "Claims": results["claims"],
            f"The same claims among the {len(results['solved_pairs'])} seeds whose models both solved the task": results[
                "claims_solved_pairs"
            ],
        },
        figures=run.pictures,
        numbers=tables(results),
        reproduce=reproduction(run.facts, run.settings_text),
    )
