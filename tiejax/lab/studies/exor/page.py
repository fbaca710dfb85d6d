"""The page of an EXor run, from the body of results.json."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting import sections
from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.uses import uses_table
from tiejax.lab.reporting.words import Table, count_true, share
from tiejax.lab.studies.exor.plateaus import NONE
from tiejax.lab.studies.exor.settings import changes
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.exor.trajectories import TABLES, THRESHOLDS
from tiejax.statistics.arms import ARMS

QUESTION = (
    "Two spellings of a bit have the same meaning. Do input, output and tied embeddings bring them together, even if they are "
    "not equally likely, so that the distributional hypothesis (DH) fails? What does tying cost in that case?"
)
LOSSES = "Numbers: exact cross-entropy of the training split, and who solved the task"
Tables = dict[str, Table]  # heading -> (columns, rows)
DIGIT = {"zero": "0", "one": "1"}


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to the page's question, then the counts of verdicts and of solved models."""
    task = EXor(results["bits"], tuple(results["zero"]), tuple(results["one"]))
    if task.violating:
        lead = f"DH fails for the pair of spellings of {DIGIT[task.violating]}, which are not equally likely."
        distances = ["tied-conflict/untied-input"]
    else:
        lead = "DH fails for no pair of spellings: spellings of a bit that both occur are equally likely."
        distances = [f"first-passage/{threshold:g}/input" for threshold in THRESHOLDS]
    ids = [f"input-semantic/{task.violating or task.holding}", *distances, "tying-free", "tying-costs", "solved", "solve-time"]
    answer, counts = openings(results["claims"], ids, lead), tally(results["claims"])
    if results["solved"]:
        untied, tied = (f"{count_true(results['solved'][name])} {name}" for name in ARMS)
        counts += f" {untied} and {tied} models solved the task: {_solved_means(results)}."
    return [*filter(None, [answer]), counts]


def _solved_means(results: Mapping[str, Any]) -> str:
    """Return the definition of solving, in words."""
    return (
        "their exact cross-entropy came within .1 nat of that of the best possible predictor and stayed there for "
        f"{results['solving_window']:,} steps"
    )


def tables(results: Mapping[str, Any]) -> Tables:
    """Return the tables of the report: outcomes by arm, plateaus, medians and quartiles, every seed, gradients of each use."""
    if not results["claims"]:  # no member stayed finite
        return {}
    untied, tied = (sections.arrays_in_words(results["final"][arm]) for arm in ARMS)
    lasting = ~np.isin(results["seeds"], results["excluded_seeds"])
    finite = ({name: values[lasting] for name, values in arm.items()} for arm in (untied, tied))
    titles = {"exact cross entropy, train": "cross-entropy", "exact accuracy, train": "accuracy"}
    titles |= {f"relative distance, {table}, {bit}": f"{bit}, {table}" for bit in ("zero", "one") for table in TABLES}
    columns = [name for name in titles if name in untied]
    by_seed = [
        [str(seed), *(sections.decimal(name, arm[name][row]) for name in columns for arm in (untied, tied))]
        for row, seed in enumerate(results["seeds"])
    ]
    headings = ["seed", *(f"{titles[name]}: {arm}" for name in columns for arm in ARMS)]
    return {
        **_outcomes(results),
        **_plateaus(results),
        **({"Numbers: median [quartiles] over seeds, final values": sections.medians_table(*finite)} if lasting.any() else {}),
        "Numbers: every seed (exact risk of the training split; relative distances of the pairs)": (headings, by_seed),
        **uses_table(results["uses"], ARMS),
    }


def _outcomes(results: Mapping[str, Any]) -> Tables:
    """Return the table of losses beside the Bayes loss, by arm, if exact risks were computed."""
    if not results["solved"]:
        return {}
    bayes, losses = results["bayes"]["splits"]["train"]["cross_entropy"], []
    for arm in ARMS:
        values = np.array(results["final"][arm]["exact_cross_entropy"]["train"], float)
        finite = values[np.isfinite(values)]
        mean, median = (f"{summary(finite):.4f}" if len(finite) else "-" for summary in (np.mean, np.median))
        losses.append([arm, mean, median, f"{bayes:.4f}", count_true(results["solved"][arm])])
    return {LOSSES: (["models", "cross-entropy (nats), mean", "median", "Bayes", "solved"], losses)}


def _plateaus(results: Mapping[str, Any]) -> Tables:
    """Return the table of plateaus: their losses, with the members at the end."""
    entry = results["plateaus"]
    if not entry:
        return {}
    last = entry["members"]
    at_end = [
        [level["knows"], "; ".join(level["also"]) or "-", f"{level['loss']:.4f}", *(str(last[arm][place]) for arm in ARMS)]
        for place, level in enumerate(entry["levels"])
    ]
    at_end.append([NONE, "-", "-", *(str(last[arm][-1]) for arm in ARMS)])
    within = f"{entry['within']:g} nat"
    return {
        f"Numbers: plateaus, losses of predictors that know a part of the context, and models within {within} at the end": (
            ["known", "near-equal losses", "cross-entropy (nats)", *ARMS],
            at_end,
        )
    }


def diverged_notes(results: Mapping[str, Any]) -> list[str]:
    """Return a note on the members that became non-finite, if there are any."""
    if not results["non_finite"]:
        return []
    return [
        f"Diverged: {sections.diverged_words(results['non_finite'])}. They stay in all comparisons: as not solved, with the "
        "worst loss, and against claims about distances. Figures and medians leave out their seeds."
    ]


def described(run: RunOnPage, of_what: str = "") -> dict[str, str]:
    """Return the description of models, seeds and training for the setting of a page; of_what: what has these seeds."""
    results, settings = run.results, run.settings
    return {
        "model": sections.model_words(results),
        "seeds": f"{len(results['seeds'])}{of_what}, each trained tied and untied from the same initial values and batches",
        "training": sections.training_words(results, settings),
        **changes(settings),
        "source": sections.PAPER,
    }


def setting(run: RunOnPage) -> dict[str, str]:
    """Return the page's description of task, model and training, by name."""
    results, settings = run.results, run.settings
    bits, bayes, train = results["bits"], results["bayes"], results["bayes"]["splits"]["train"]
    return {
        "variant": f"{results['variant']}: 0 is spelled with probabilities {results['zero']}, 1 with {results['one']}",
        "strings": f"{2**bits - 1} of {bits} bits; batch: {settings['batch_size'] or 'the whole training split'}",
        "Bayes": f"accuracy {share(bayes['accuracy'], 2)}, cross-entropy {bayes['cross_entropy']:.4f} nats "
        f"(training split: {share(train['accuracy'], 2)}, {train['cross_entropy']:.4f} nats)",
        **described(run),
    }


def page(run: RunOnPage) -> str:
    """Return the HTML page of a run."""
    results = run.results
    model, notes = results["model"], diverged_notes(results)
    if not results["solved"]:
        notes.append("No exact risk was computed: the task has too many contexts, or no seed stayed finite.")
    return render(
        run,
        title=f"EXor, {results['variant']}: tied against untied, {model['architecture']} {model['size']}",
        question=QUESTION,
        finding=finding(results),
        setting=setting(run),
        notes=notes,
        claims={"Claims": results["claims"]},
        numbers=tables(results),
    )
