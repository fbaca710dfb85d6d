"""The page across variants of EXor, and its figure, the price of tying of every seed, from the body of its results.json."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.sections import diverged_words, rates_table
from tiejax.lab.reporting.words import Table, count_true, number
from tiejax.lab.studies.exor.page import described
from tiejax.lab.studies.exor.task import EXor
from tiejax.statistics.arms import ARMS

QUESTION = (
    "Two spellings of a bit have the same meaning; if they are not equally likely, the distributional hypothesis (DH) fails. "
    "Does tying cost more in the variants of the task in which it fails for a pair than in those in which it fails for none?"
)
NOTE = (
    "The claims of each variant about itself, its figures and its numbers are in its own report, in the folder of its name. "
    "The claims on this page are one family, tested together. All variants train the same seeds: a seed is the same initial "
    "values in each, and differences between variants are paired by seed."
)
CAPTION = (
    "Price of tying, the difference of the exact cross-entropies of the tied and the untied model of a seed, in every variant: "
    "a dot per seed and a line between the same seed's dots; black: mean and 95 % interval. Right of 0 the tied model has the "
    "higher loss."
)


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the registered interactions, then the other registered claims, and the counts of verdicts."""
    ids = [row["id"] for row in results["claims"] if row["verdict"] != "exploratory"]
    groups = ([name for name in ids if name.startswith("interaction/") == first] for first in (True, False))
    return [*filter(None, (openings(results["claims"], group) for group in groups)), tally(results["claims"])]


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the table of the variants: mean losses, the price of tying, and who solved the task."""
    rows = []
    for name, entry in results["runs"].items():
        if entry["cross_entropy"] is None:
            rows.append([name, f"{entry['bayes_cross_entropy']:.4f}", *["-"] * 5])
            continue
        losses = [np.array(entry["cross_entropy"][arm], float) for arm in ARMS]
        means = [f"{np.nanmean(values):.4f}" if np.isfinite(values).any() else "-" for values in losses]
        prices = [row for row in results["claims"] if row["id"] in (f"tying-costs/{name}", f"tying-free/{name}")]
        price = number(prices[0]["estimate"]) if prices else "-"
        solved = [count_true(entry["solved"][arm]) if entry["solved"] else "-" for arm in ARMS]
        rows.append([name, f"{entry['bayes_cross_entropy']:.4f}", *means, price, *solved])
    headings = ["variant", "Bayes", *(f"mean, {arm}" for arm in ARMS), "tied - untied", *(f"solved, {arm}" for arm in ARMS)]
    found = {"Numbers: final exact cross-entropy (nats) of the training split": (headings, rows)}
    if tuning := results.get("tuning"):
        seeds = f"{results['tuning_seeds'][0]} to {results['tuning_seeds'][-1]}"
        columns, tried = rates_table(tuning)
        # Without the losses of every seed, the last column.
        found[f"Numbers: learning rates, on seeds {seeds} only"] = columns[:-1], [row[:-1] for row in tried]
    return found


def conflict_words(results: Mapping[str, Any], variant: str) -> str:
    """Return how a variant spells its bits, and whether DH fails for a pair."""
    entry = results["runs"][variant]
    task = EXor(results["bits"], tuple(entry["zero"]), tuple(entry["one"]))
    fails = f"DH fails for the {task.violating} pair" if task.violating else "DH fails for no pair of spellings"
    ours = "; not a published variant" if variant == "half" else ""
    return f"0 is spelled with probabilities {entry['zero']}, 1 with {entry['one']}: {fails}{ours}"


def _reports(results: Mapping[str, Any]) -> str:
    """Return the reports of the runs; with rates to choose from, those of the reported ones."""
    if "tuning" not in results:
        return ", ".join(f"{name}/report.html" for name in results["variants"])
    rates = {name: {results["tuning"][f"{name}, {arm}"]["best"] for arm in ARMS} for name in results["variants"]}
    return ", ".join(f"{name}/rate-{rate:g}/report.html" for name, chosen in rates.items() for rate in sorted(chosen))


def page(run: RunOnPage) -> str:
    """Return the HTML page across variants."""
    results = run.results
    setting = {
        **{name: conflict_words(results, name) for name in results["variants"]},
        "reports": _reports(results),
        **described(run, " in every variant"),
    }
    diverged = diverged_words(results["non_finite"])
    notes = [f"Diverged: {diverged}. They stay in all comparisons, with the worst loss of their variant."] if diverged else []
    return render(
        run,
        title=f"EXor, {', '.join(results['variants'])}: what tying costs where DH fails, and where it holds",
        question=QUESTION,
        finding=finding(results),
        setting=setting,
        notes=[*notes, NOTE],
        claims={"Claims": results["claims"]},
        numbers=tables(results),
    )


def plot_all(results: Mapping[str, Any]) -> Sequence[figures.Plot]:
    """Plot the price of every seed by variant, with the claims about it; no figure without exact risk."""
    losses = {name: entry["cross_entropy"] for name, entry in results["runs"].items() if entry["cross_entropy"] is not None}
    # Tied - untied; NaN if one of the two diverged.
    prices = {name: np.array(each["tied"], float) - np.array(each["untied"], float) for name, each in losses.items()}
    if not prices:
        return []
    figure, axes = figures.new_figure(1, 1, 6.4, 1 + 0.4 * len(prices))
    panel = axes[0, 0]
    values = np.stack(list(prices.values()))
    drawn = figures.drawn_seeds(values.shape[1])
    opacity = float(np.clip(6 / len(drawn), 0.1, 0.5))
    panel.plot(values[:, drawn], range(len(values)), color="grey", alpha=opacity, linewidth=0.6)
    by_id = {row["id"]: row for row in results["claims"]}
    for place, (name, of_variant) in enumerate(prices.items()):
        panel.plot(of_variant[drawn], np.full(len(drawn), place), "o", color=figures.BLUE, alpha=0.5, markersize=3)
        row = by_id.get(f"tying-costs/{name}") or by_id.get(f"tying-free/{name}")
        if row is not None and row["interval"] is not None and None not in row["interval"]:
            panel.hlines(place + 0.25, *row["interval"], color="black", linewidth=1.5)
            panel.plot(row["estimate"], place + 0.25, "s", color="black", markersize=4)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_yticks(range(len(prices)), list(prices))
    panel.set_ylim(len(prices) - 0.4, -0.6)
    panel.set_xlabel("cross-entropy, tied - untied (nats)")
    if len(drawn) < values.shape[1]:
        panel.set_title(f"{len(drawn)} of {values.shape[1]} seeds drawn", fontsize=7, color="grey", loc="right")
    return [figures.Plot("prices", CAPTION, figure)]
