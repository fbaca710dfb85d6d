"""The page of a run's diagnosis, its figure, and the verdict on tying its embeddings, from results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.geometry.equivalence import THRESHOLD
from tiejax.lab.reporting import figures
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.words import Table, count_true, number
from tiejax.lab.studies.diagnosis.run import MEASURES

ALIGNMENT = {
    "identity": "identity",
    "procrustes": "Procrustes",
    "least_squares": "least squares",
    "neighbours": "shared neighbours",
    "canonical": "mean canonical correlation",
}
# What a violated distributional hypothesis means for a set of pairs, by its case.
FAILS = {
    "fails: same meaning": "the symbols mean the same but are not used alike: in the theory of Bertolotti and Cazzola, without "
    "a bias of the logits, a shared table would have to place them both close together and far apart",
    "fails: same use": "the symbols are used alike but do not mean the same",
}
# The set of pairs whose symbols spell different bits. A larger residual there than LEARNT, chosen by hand, is taken as not
# having learnt which bit a context asks for.
ACROSS, LEARNT = "a 0 and a 1", 2.0
UNTESTED = "This describes these members; whether tying costs anything is not tested."

SHOWN = 6  # arms in a figure
# Positions in a panel, and the case of the distributional hypothesis (DH) there.
CASES = (
    (0.02, 0.97, "DH fails:\nsame meaning"),
    (0.98, 0.97, "DH holds:\ndifferent"),
    (0.98, 0.41, "DH fails:\nsame use"),
    (0.02, 0.41, "DH holds:\nsame"),
)
CAPTION = (
    "Effect of swapping two symbols on the predictions, in the input (semantic distance) and in the output (conditional "
    "distance): mean Jensen-Shannon divergence, medians over pairs and seeds. The distributional hypothesis (DH) says that "
    "both are small or both are large."
)


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
            *(number(row[measure]) for measure in MEASURES),
            "; ".join(f"{case} {count}" for case, count in row["cases"].items()),
        ]
        for name, sets in by_arm.items()
        for row in sets
    ]
    return ["arm", "pairs", *(measure.replace("_", " ") for measure in MEASURES), "cases"], rows


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


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Return whether and how the distributional hypothesis fails for any set of pairs, and for how many members of each arm."""
    failing: dict[tuple[str, str], list[str]] = {}
    for name, rows in results["equivalence"].items():
        for row in rows:
            case, members = max(row["cases"].items(), key=lambda item: item[1])
            if case in FAILS:
                failing.setdefault((row["set"], case), []).append(f"{name} ({members} of {sum(row['cases'].values())})")
    found = "In no set of pairs do most members pass the thresholds for a violation of the distributional hypothesis."
    if failing:
        sets = ", ".join(dict.fromkeys(pairs for pairs, _ in failing))
        found = f"In most members, the thresholds for a violation of the distributional hypothesis are passed for: {sets}."
    lines = [f"{found} {UNTESTED}"]
    unlearnt = [
        name
        for name, rows in results["equivalence"].items()
        if any(row["set"] == ACROSS and (row["residual_rms"] or 0) > LEARNT for row in rows)
    ]
    if unlearnt:
        lines.append(
            f"In most members of {', '.join(unlearnt)} the residual of {ACROSS} is above {LEARNT:g}, which is taken as not "
            "having learnt which bit a context asks for: their results describe the models, not the task."
        )
    return lines + [f"{pairs}: {FAILS[case]}: {', '.join(names)}" for (pairs, case), names in failing.items()]


def page(run: RunOnPage) -> str:
    """Return the page as HTML."""
    results = run.results
    arms, seeds = len(results["arms"]), ", ".join(map(str, results["seeds"]))
    setting = {
        "run": results["checkpoint"],
        "experiment": f"{results['kind']}, {arms} arms, seeds {seeds}, after {results['step']:,} steps",
        "contexts": f"{results['contexts']:,}; a swap changes one occurrence of a symbol at a time",
        "measures": "score: ln[(conditional + t) / (semantic + t)], t = .02 nats; above 0 if symbols mean the same but are not "
        "used alike. residual: root mean square of h . (e1 - e2) minus the true log ratio. condition: condition number of the "
        "states in contexts of the pair, a dash if it is infinite in most members. Maps are fitted to the tokens they are "
        "scored on",
        "source": "Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610), for the equivalences; A. Lopardo et al. 2026 "
        "(arXiv:2603.26663) for the maps and the published ratios",
    }
    return render(
        run,
        title=f"Diagnosis of {Path(results['checkpoint']).name}: should these embeddings be tied?",
        question="Which symbols mean the same to the model, which are used alike, and where do the two differ? How similar "
        "are its tables, and how large are the gradients of their two uses?",
        finding=verdict(results),
        setting=setting,
        numbers=numbers(results),
    )


def plot_all(results: Mapping[str, Any]) -> list[figures.Plot]:
    """Plot conditional against semantic distance (nats) of the sets of pairs, one panel per arm, with lines between cases."""
    arms = list(results["equivalence"].items())[:SHOWN]
    figure, axes = figures.grid(len(arms), 3, 3.6, 3.4, below=0.3)
    for panel, (title, sets) in zip(axes, arms, strict=True):
        measured = [row for row in sets if None not in (row["semantic_distance"], row["conditional_distance"])]
        for place, row in enumerate(measured):
            colour = figures.SERIES[place % len(figures.SERIES)]
            distances = row["semantic_distance"], row["conditional_distance"]
            panel.plot(*distances, "o", color=colour, markersize=8, label=row["set"])
        panel.axvline(THRESHOLD, color="black", linewidth=0.8, linestyle=":")
        panel.axhline(THRESHOLD, color="black", linewidth=0.8, linestyle=":")
        panel.set_xscale("symlog", linthresh=THRESHOLD / 4, linscale=0.5)
        panel.set_yscale("symlog", linthresh=THRESHOLD / 4, linscale=0.5)
        panel.set_xlim(-THRESHOLD / 20, 1)
        panel.set_ylim(-THRESHOLD / 20, 1)
        for x, y, words in CASES:
            along = "left" if x < 0.5 else "right"
            panel.text(x, y, words, transform=panel.transAxes, fontsize=7, color="grey", ha=along, va="top")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_ticks([0, 0.01, 0.1, 1], ["0", ".01", ".1", "1"])
        panel.set_title(title)
        panel.set_xlabel("semantic distance (nats)")
        panel.set_ylabel("conditional distance (nats)")
    figures.legend_below(figure, axes[0])
    return [figures.Plot("equivalence", CAPTION, figure)]
