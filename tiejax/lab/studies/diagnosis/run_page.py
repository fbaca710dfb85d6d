"""The page of a run's diagnosis, from results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.sections import reproduction
from tiejax.lab.reporting.words import count_true, number
from tiejax.lab.studies.diagnosis import run_verdict

# Measure -> column heading.
EQUIVALENCE = {
    "semantic_distance": "semantic",
    "conditional_distance": "conditional",
    "log_ratio_mean": "log ratio",
    "score": "score",
    "residual_rms": "residual",
    "condition_number": "condition",
}
ALIGNMENT = {
    "identity": "identity",
    "procrustes": "Procrustes",
    "least_squares": "least squares",
    "neighbours": "shared neighbours",
    "canonical": "mean canonical correlation",
}

Table = tuple[list[str], list[list[str]]]  # columns, rows


def numbers(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the page by their headings: equivalence, alignment, and uses if recorded."""
    tables = {
        "Equivalence of symbols, medians over pairs and seeds (nats)": _equivalence_table(results["equivalence"]),
        "Alignment of tables, medians over seeds": _alignment_table(results["alignment"]),
    }
    if results["uses"]:
        title = "Ratio of the gradient norms of the output and input uses, medians over records and seeds"
        tables[title] = _uses_table(results["uses"], results["arms"])
    return tables


def _equivalence_table(by_arm: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows = [
        [
            name,
            row["set"],
            *(number(row[measure]) for measure in EQUIVALENCE),
            "; ".join(f"{case} {count}" for case, count in row["cases"].items()),
        ]
        for name, sets in by_arm.items()
        for row in sets
    ]
    return ["arm", "pairs", *EQUIVALENCE.values(), "cases"], rows


def _alignment_table(by_arm: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows = []
    for name, members in by_arm.items():
        tied = count_true([member["tied"] for member in members])
        maps = sorted({key for member in members for key in member if key != "tied"})
        for key in maps:
            scores = [member[key] for member in members if key in member]
            rows.append([name, tied, key, *(_median([score[measure] for score in scores]) for measure in ALIGNMENT)])
        if not maps:
            rows.append([name, tied, "-", *("-" for _ in ALIGNMENT)])
    return ["arm", "tied", "map", *ALIGNMENT.values()], rows


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(float(np.median(known)) if known else None)


def _uses_table(windows: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> Table:
    rows = [
        [
            f"from {row['from']:,}" + ("" if row["to"] is None else f" to {row['to'] - 1:,}"),
            *(number(row[name]["ratio"]) for name in arms),
            number(row["published"]),
        ]
        for row in windows
    ]
    return ["steps", *arms, "OLMo-1B, published"], rows


def page(results: Mapping[str, Any], facts: Mapping[str, Any], settings_text: str, pictures: Sequence[tuple[str, Path]]) -> str:
    """Return the HTML page. facts: environment.json. settings_text: config.yaml. pictures: captions and PNG files."""
    arms, seeds = len(results["arms"]), ", ".join(map(str, results["seeds"]))
    setting = {
        "run": results["checkpoint"],
        "experiment": f"{results['kind']}, {arms} arms, seeds {seeds}, after {results['step']:,} steps",
        "contexts": f"{results['contexts']:,}; a swap changes one occurrence of a symbol at a time",
        "measures": "score: ln[(conditional + t) / (semantic + t)], t = .02 nats; above 0 if symbols mean the same but are not "
        "used alike. residual: root mean square of h . (e1 - e2) minus the true log ratio. condition: condition number of the "
        "states in contexts of the pair. Maps are fitted to the tokens they are scored on",
        "source": "Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610), for the equivalences; A. Lopardo et al. 2026 "
        "(arXiv:2603.26663) for the maps and the published ratios",
    }
    return report.render(
        title=f"Diagnosis of {Path(results['checkpoint']).name}: should these embeddings be tied?",
        question="Which symbols mean the same to the model, which are used alike, and where do the two differ? How similar "
        "are its tables, and how large are the gradients of their two uses?",
        finding=run_verdict.verdict(results),
        setting=setting,
        notes=[],
        claims={},
        figures=pictures,
        numbers=numbers(results),
        reproduce=reproduction(facts, settings_text),
    )
