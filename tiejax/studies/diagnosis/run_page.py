"""The figures, the verdict and the page of the diagnosis of a run of ours, from the body of results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.reporting import figures
from tiejax.reporting import page as report
from tiejax.reporting.plot import Plot
from tiejax.reporting.sections import reproduction

SHOWN = 6  # arms in a figure
# EnsembleState that solve EXor tell spellings of different bits apart with a residual below this, others exceed it by far.
ACROSS, LEARNT = "a 0 and a 1", 2.0
MEASURES = {"identity": "identity", "procrustes": "Procrustes", "least_squares": "least squares"}
MEASURES |= {"neighbours": "shared neighbours", "canonical": "mean canonical correlation"}


def plot_all(results: Mapping[str, Any], threshold: float) -> list[Plot]:
    """Draw what the pairs are for each arm, medians over seeds; threshold: between small and large, nats."""
    panels = {
        name: {
            row["set"]: (row["semantic_distance"], row["conditional_distance"])
            for row in rows
            if row["semantic_distance"] is not None and row["conditional_distance"] is not None
        }
        for name, rows in list(results["equivalence"].items())[:SHOWN]
    }
    return [
        Plot(
            "equivalence",
            "What swapping two symbols does to the predictions: in the input (semantic distance) and in the output "
            "(conditional distance), mean Jensen-Shannon divergence, medians over pairs and seeds. The distributional "
            "hypothesis (DH) says that both are small or neither.",
            figures.equivalences(panels, threshold),
        )
    ]


FAILS = {
    "fails: same meaning": "mean the same and are not used alike, so that one table for both roles is asked to hold them "
    "together and apart",
    "fails: same use": "are used alike and do not mean the same",
}


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Say in words which sets of pairs part, and for how many of the members of each arm."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, rows in results["equivalence"].items():
        for row in rows:
            case, number = max(row["cases"].items(), key=lambda item: item[1])
            if case in FAILS:
                found.setdefault((row["set"], case), []).append(f"{name} ({number} of {sum(row['cases'].values())})")
    lines = [f"{pairs}: {FAILS[case]}: {', '.join(names)}" for (pairs, case), names in found.items()]
    unlearnt = [
        name
        for name, rows in results["equivalence"].items()
        if any(row["set"] == ACROSS and (row["residual_rms"] or 0) > LEARNT for row in rows)
    ]
    if unlearnt:
        lines.append(
            f"most members have not learnt which bit a context asks for ({', '.join(unlearnt)}: their residual between "
            f"{ACROSS} is above {LEARNT:g}): what is said of these describes the models, not the task"
        )
    return lines or ["no set of pairs violates the distributional hypothesis for most members: none speaks against tying"]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def numbers(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the page: equivalence, alignment, uses."""
    measures = ("semantic_distance", "conditional_distance", "log_ratio_mean", "score", "residual_rms", "condition_number")
    equivalent = [
        [name, row["set"], *(_shown(row[one]) for one in measures), "; ".join(f"{c} {n}" for c, n in row["cases"].items())]
        for name, rows in results["equivalence"].items()
        for row in rows
    ]
    aligned = []
    for name, members in results["alignment"].items():
        kinds = sorted({kind for member in members for kind in member if kind != "tied"})
        tied = f"{sum(member['tied'] for member in members)} of {len(members)}"
        for kind in kinds:
            of_kind = [member[kind] for member in members if kind in member]
            values = [[one[measure] for one in of_kind if one[measure] is not None] for measure in MEASURES]
            aligned.append([name, tied, kind, *(_shown(float(np.median(found)) if found else None) for found in values)])
        if not kinds:
            aligned.append([name, tied, "-", *("-" for _ in MEASURES)])
    headings = ["arm", "pairs", "semantic", "conditional", "log ratio", "score", "residual", "condition", "cases"]
    found = {
        "Equivalence of symbols, medians over pairs and seeds (nats)": (headings, equivalent),
        "Alignment of tables, medians over seeds": (["arm", "tied in fact", "map", *MEASURES.values()], aligned),
    }
    if results["uses"]:
        rows = [
            [
                f"from {row['from']:,}" + ("" if row["to"] is None else f" to {row['to'] - 1:,}"),
                *(_shown(row[name]["ratio"]) for name in results["arms"]),
                _shown(row["published"]),
            ]
            for row in results["uses"]
        ]
        title = "Gradient of the output use over that of the input use, medians over records and seeds"
        found[title] = (["steps", *results["arms"], "OLMo-1B, published"], rows)
    return found


def page(results: Mapping[str, Any], facts: Mapping[str, Any], settings_text: str, pictures: Sequence[tuple[str, Path]]) -> str:
    """Return the HTML page. facts: environment.json; settings_text: the diagnosis's own; pictures: captions and PNG files."""
    arms, seeds = len(results["arms"]), ", ".join(map(str, results["seeds"]))
    setting = {
        "run": results["checkpoint"],
        "experiment": f"{results['kind']}, {arms} arms, seeds {seeds}, after {results['step']:,} steps",
        "contexts": f"{results['contexts']:,}; a swap changes one occurrence of a symbol at a time",
        "measures": "score: ln[(conditional + t) / (semantic + t)], t = .02 nats: above 0 where symbols mean the same and are "
        "not used alike. residual: root mean square of h . (e1 - e2) less the true log ratio. condition: of the states that "
        "ask for the pair. Maps are fitted to the tokens that they are scored on",
        "source": "Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610), for the equivalences; A. Lopardo et al. 2026 "
        "(arXiv:2603.26663) for the maps and the published ratios",
    }
    return report.render(
        title=f"Diagnosis of {Path(results['checkpoint']).name}: should these embeddings be tied?",
        question="Which symbols mean the same for the model, which are used alike, and where do the two part? How do its "
        "tables stand to each other, and what does each use ask of them?",
        finding=verdict(results),
        setting=setting,
        notes=[],
        claims={},
        figures=pictures,
        numbers=numbers(results),
        reproduce=reproduction(facts, settings_text),
    )
