"""The page about a checkpoint's input and output tables, and its figures, from results.json and the arrays of metrics.npz."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.checkpoints.diagnose.verdict import agreement, has_both_roles, verdict
from tiejax.geometry.ranks import Bands, bands_by_rank
from tiejax.lab.reporting import figures
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.words import Table, duration, formatted, number
from tiejax.system.memory import size_words

UNCOUNTED = "unknown: some shards were not downloaded, and their headers could not be read from the hub"
LIMITS = (
    "A diagnosis describes two tables after one training run. It does not show how the other choice would train: if the answer "
    "matters, train both with several seeds. Weight decay acts once on a tied table and twice on an untied pair, and both "
    "roles of a tied table start at one scale. The gain of the last normalisation multiplies the columns of the output table, "
    "but is not part of it: compare how norms change with rank, not their levels. Rows of tokens that rarely occur are trained "
    "little in the input table, so that their initial values add to any distance between the tables."
)
COLOURS = {"input": figures.BLUE, "output": figures.GREEN, "both": figures.ORANGE}
MAPPED = {
    "cosine_from_input": ("input mapped to output", figures.BLUE),
    "cosine_from_output": ("output mapped to input", figures.GREEN),
    "cosine_as_is": ("unmapped", "#888888"),
}


def _table_words(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "not stored"
    transposed = ", stored transposed" if facts["transposed"] else ""
    rows, width = facts["shape"]
    stored = f"{facts['dtype']}{transposed}, {size_words(facts['nbytes'])}"
    return f"{facts['name']} in {facts['file']}: {rows:,} tokens x {width:,}, {stored}"


def _rank_words(rank: Mapping[str, Any]) -> str:
    if rank["by"] != "corpus":
        return f"by token id (no corpus given); tokenizer: {rank['tokenizer'] or 'none found'}"
    return f"by frequency in {rank['corpus']}: {rank['tokens']:,} tokens, {rank['different']:,} different; {rank['tokenizer']}"


def _stored(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about the stored tables, by name."""
    fact = {
        "absent": _one_table(results),
        "equal": "yes: the two stored tables are equal in every value",
        "untied": f"no: {results['differing_rows'] or 0:,} of {results['tables']['input']['shape'][0]:,} rows differ"
        + (f", by at most {number(results['largest_difference'])}" if results["largest_difference"] is not None else ""),
    }[results["fact"]]
    architecture = ", ".join(map(str, results["architectures"])) or "not named"
    return {
        "checkpoint": results["checkpoint"],
        "family": f"{results['family'] or 'unknown'} (model_type {results['model_type']}; {architecture})",
        "parameters stored": UNCOUNTED if results["parameters"] is None else f"{results['parameters']:,}",
        "input table": _table_words(results["tables"]["input"]),
        "output table": _table_words(results["tables"]["output"]),
        "tied": fact,
        "flag": agreement(results),
        "output bias": f"{results['bias']}: it can hold how frequent a token is, so that norms need not"
        if results["bias"]
        else "none found",
        "token rank": _rank_words(results["rank"]),
        "time": duration(results["seconds"]),
    }


def _norm_rows(results: Mapping[str, Any]) -> list[list[str]]:
    names = ("low", "median", "high", "spearman", "unseen_median")
    return [[role, *(number(norms[name]) for name in names), f"{norms['zero']:,}"] for role, norms in results["norms"].items()]


def _scores(results: Mapping[str, Any]) -> list[list[str]]:
    aligned, shared, canonical = results["alignment"], results["neighbours"], results["canonical"]
    squares, chance, interval = aligned["least_squares"], aligned["chance"], shared["interval"]
    within = f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "-"
    return [
        ["cosine, unmapped", number(aligned["identity"]), "-", "about 0"],
        ["cosine, orthogonal Procrustes", number(aligned["procrustes"]), "-", "-"],
        ["cosine, least squares from the input", number(squares["from_input"]), "-", number(chance["from_input"])],
        ["cosine, least squares from the output", number(squares["from_output"]), "-", number(chance["from_output"])],
        [f"neighbours shared, of {shared['k']}", number(shared["estimate"]), within, number(shared["chance"])],
        [f"canonical correlation, mean of {canonical['number']:,}", number(canonical["mean"]), "-", "-"],
    ]


def _tokens(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    values = ("cosine", "cosine_as_is", "norm_input", "norm_output")
    return [
        [
            row["text"] or f"id {row['id']}",
            f"{row['id']:,}",
            f"{row['rank']:,}",
            formatted(row["count"], ","),
            *(number(row[v]) for v in values),
        ]
        for row in rows
    ]


def numbers(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the page: heading -> (columns, rows)."""
    columns = ["table", "10 %", "median", "90 %", "Spearman with rank", "median of tokens not in the corpus", "rows of norm 0"]
    norms = {"Norms of the rows": (columns, _norm_rows(results))}
    if results["fact"] != "untied":
        return norms
    token_columns = ["token", "id", "rank", "count", "cosine, mapped", "cosine, unmapped", "norm, input", "norm, output"]
    return norms | {
        "Similarity of the two tables": (["score", "value", "95 % interval", "chance"], _scores(results)),
        "Tokens with the least similar rows": (token_columns, _tokens(results["tokens"]["apart"])),
        "Tokens with the most similar rows": (token_columns, _tokens(results["tokens"]["near"])),
    }


def _measures(results: Mapping[str, Any]) -> dict[str, str]:
    """Return what the scores of two different tables are."""
    if results["fact"] != "untied":
        return {}
    scored, rows = results["alignment"]["scored"], results["tables"]["input"]["shape"][0]
    sampled = "" if scored == rows else f" Maps are fitted to all {rows:,} tokens and scored on {scored:,} sampled ones."
    queries = results["neighbours"]["queries"]
    return {
        "measures": "Cosine: the mean over tokens between the mapped row in one table and the row in the other. Procrustes and "
        "least squares use centred tables, and are fitted to the tokens they are scored on, so that unrelated tables do not "
        f"give 0.{sampled} Neighbours: of {queries:,} tokens, by cosine, among all {rows:,}. Chance: the value for unrelated "
        "tables. Tokens: among the first 10,000 ranks, by the mean of the cosines in both least-squares directions."
    }


def _one_table(results: Mapping[str, Any]) -> str:
    """Return what it means that one table is compared."""
    if results["form"]:
        return f"unknown: a table is stored {results['form']}"
    if results["head"] is False:
        return "one table; the architecture predicts no tokens"
    return "one table, for both roles" if has_both_roles(results) else "one table; whether it has both roles is unknown"


def _notes(results: Mapping[str, Any]) -> list[str]:
    """Return warnings that the verdict does not contain."""
    notes = []
    differing, rows = results["differing_rows"], results["tables"]["input"]["shape"][0]
    if results["fact"] == "untied" and differing is not None and 2 * differing < rows:
        notes.append(
            f"Only {differing:,} of {rows:,} rows differ: rather one table with some rows changed later than two tables."
        )
    if results["head"] is False:
        notes.append(f"config.json names {', '.join(map(str, results['architectures']))}, which predicts no tokens.")
    return notes


def page(run: RunOnPage) -> str:
    """Return the page as HTML."""
    results = run.results
    return render(
        run,
        title=f"Input and output embeddings of {Path(results['checkpoint']).name or results['checkpoint']}",
        question="Should these embeddings be tied?",
        finding=verdict(results),
        setting={**_stored(results), **_measures(results), "limits": LIMITS},
        notes=[*_notes(results), *results["notes"]],
        numbers=numbers(results),
    )


def curves_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Bands]:
    """Return the bands over token rank for the figures. arrays: as in metrics.npz."""
    curves = {}
    for name in ("norm_input", "norm_output", *MAPPED):
        if name in arrays:
            chosen = arrays["scored"] if name.startswith("cosine_from") else slice(None)
            curves[name] = bands_by_rank(arrays[name], arrays["rank"][chosen], arrays["counted"][chosen])
    return curves


def plot_all(results: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[figures.Plot]:
    """Plot all figures of a diagnosis, the most important one first. arrays: as in metrics.npz."""
    curves = curves_of(arrays)
    rank = (
        "Ranks: by frequency in the corpus, without tokens that do not occur."
        if results["rank"]["by"] == "corpus"
        else "Ranks: token ids, which roughly follow frequency in BPE and WordPiece vocabularies."
    )
    bands = "Line: median by rank; band: the middle 80 % of the tokens."
    norms = figures.Plot("norms", f"Norms of the rows by token rank. {bands} {rank}", plot_norms(results, curves))
    if results["fact"] != "untied":
        return [norms]
    return [
        figures.Plot(
            "cosines",
            "Cosine between the two rows of a token: after a least-squares map in either direction (tables centred), and "
            f"unmapped. Left: all scored tokens; right: by token rank. {bands} {rank}",
            plot_cosines(results, curves, arrays),
        ),
        norms,
    ]


def plot_norms(results: Mapping[str, Any], curves: Mapping[str, Bands]) -> Figure:
    """Plot the row norms of both tables, or of the one table of a tied model, over token rank."""
    tied = "norm_output" not in curves
    figure, axes = figures.new_figure(1, 1 if tied else 2, 6 if tied else 8.4, 3.2)
    for panel, role in zip(axes[0], ("input", "output"), strict=False):
        _plot_band(panel, curves[f"norm_{role}"], COLOURS["both" if tied else role], role)
        panel.set_title("the table" if tied else f"{role} table")
        panel.set_ylim(bottom=0)
        _label_ranks(panel, results)
    axes[0, 0].set_ylabel("Euclidean norm of a row")
    return figure


def plot_cosines(results: Mapping[str, Any], curves: Mapping[str, Bands], arrays: Mapping[str, np.ndarray]) -> Figure:
    """Plot the distribution of the cosines between tokens' two rows, and the cosines over token rank."""
    figure, axes = figures.new_figure(1, 2, 8.4, 3.2)
    shares, by_rank = axes[0]
    shown = {name: look for name, look in MAPPED.items() if name in arrays and not np.isnan(arrays[name]).all()}
    low = min((float(np.nanmin(arrays[name])) for name in shown), default=0.0)
    edges = np.linspace(min(low, 0), 1, 81)
    for name, (label, colour) in shown.items():
        values = arrays[name][~np.isnan(arrays[name])]
        heights, _ = np.histogram(values, edges)
        shares.stairs(heights / max(len(values), 1), edges, color=colour, linewidth=1.5, label=label)
        _plot_band(by_rank, curves[name], colour, label)
    shares.set_xlabel("cosine of a token's two rows")
    shares.set_ylabel("share of tokens")
    if shown:  # a table of zeros has no cosines
        shares.legend(frameon=False, fontsize=8)
    by_rank.set_ylabel("cosine of a token's two rows")
    _label_ranks(by_rank, results)
    return figure


def _plot_band(axes: Axes, bands: Bands, colour: str, label: str) -> None:
    if not len(bands.rank):
        return
    axes.fill_between(bands.rank, bands.low, bands.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(bands.rank, bands.median, color=colour, linewidth=2, label=label)


def _label_ranks(axes: Axes, results: Mapping[str, Any]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("rank by frequency in the corpus" if results["rank"]["by"] == "corpus" else "rank by token id")
