"""The figures and the page about a checkpoint's input and output tables, from the body of results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiejax.reporting import figures
from tiejax.reporting import page as report
from tiejax.reporting.plot import Plot
from tiejax.reporting.sections import reproduction
from tiejax.reporting.words import duration, number
from tiejax.studies.diagnosis.verdict import agreement, memory, verdict

COLOURS = {"input": figures.BLUE, "output": figures.GREEN, "both": figures.ORANGE}
MAPPED = {
    "cosine_from_input": ("input mapped to output", figures.BLUE),
    "cosine_from_output": ("output mapped to input", figures.GREEN),
    "cosine_as_is": ("as they are", "#888888"),
}
CONFOUNDS = (
    "It describes where two tables stand after one training; it does not prove what training with the other choice would do. "
    "Train both, with several seeds, where the answer matters.",
    "Weight decay acts once on a tied table and twice on an untied pair, and one initial scale suits one of the two roles: "
    "tied and untied models differ in both, whatever the tables say.",
    "The last normalisation's gain multiplies the columns of the output table, and is not in it. Norms of the two tables "
    "are on scales of their own: compare their course over the ranks, not their levels.",
    "Tokens that training hardly met keep the direction they were drawn with, and add to any distance between the tables.",
)


# Figures. Bands: (rank, tokens, low, median, high) by bin.


def _band(axes: Axes, bands: Any, colour: str, label: str) -> None:
    if not len(bands.rank):
        return
    axes.fill_between(bands.rank, bands.low, bands.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(bands.rank, bands.median, color=colour, linewidth=2, label=label)


def _by_rank(axes: Axes, results: Mapping[str, Any]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("rank by frequency in the corpus" if results["rank"]["by"] == "corpus" else "rank by token id")


def norms_figure(results: Mapping[str, Any], curves: Mapping[str, Any]) -> Figure:
    """Draw the norms of both tables' rows over token rank, each over its median, or of the one table of a tied model."""
    figure, axes = figures.new_figure(1, 2 if "norm_output" in curves else 1, 8.4 if "norm_output" in curves else 6, 3.2)
    tied = "norm_output" not in curves
    for one, role in zip(axes[0], ("input", "output"), strict=False):
        _band(one, curves[f"norm_{role}"], COLOURS["both" if tied else role], role)
        one.set_title("the table" if tied else f"{role} table")
        one.set_ylim(bottom=0)
        _by_rank(one, results)
    axes[0, 0].set_ylabel("Euclidean norm of a row")
    return figure


def cosines_figure(results: Mapping[str, Any], curves: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Figure:
    """Draw how the cosines of tokens' two rows are distributed, and their course over token rank."""
    figure, axes = figures.new_figure(1, 2, 8.4, 3.2)
    shown = {name: look for name, look in MAPPED.items() if name in arrays and not np.isnan(arrays[name]).all()}
    low = min((float(np.nanmin(arrays[name])) for name in shown), default=0.0)
    edges = np.linspace(min(low, 0), 1, 81)
    for name, (label, colour) in shown.items():
        values = arrays[name][~np.isnan(arrays[name])]
        heights, _ = np.histogram(values, edges)
        axes[0, 0].stairs(heights / max(len(values), 1), edges, color=colour, linewidth=1.5, label=label)
        _band(axes[0, 1], curves[name], colour, label)
    axes[0, 0].set_xlabel("cosine of a token's two rows")
    axes[0, 0].set_ylabel("share of the tokens")
    if shown:  # a table of zeros has no cosines
        axes[0, 0].legend(frameon=False, fontsize=8)
    axes[0, 1].set_ylabel("cosine of a token's two rows")
    _by_rank(axes[0, 1], results)
    return figure


def canonical_figure(results: Mapping[str, Any], correlations: np.ndarray) -> Figure:
    """Draw the canonical correlations in descending order, and the largest that unrelated tables would have."""
    figure, axes = figures.new_figure(1, 1, 6, 3.0)
    one = axes[0, 0]
    one.plot(np.arange(1, len(correlations) + 1), correlations, color=figures.BLUE, linewidth=2)
    one.axhline(results["canonical"]["largest_by_chance"], color="black", linewidth=0.9, linestyle=":")
    one.set_xlim(1, max(len(correlations), 2))
    one.set_ylim(0, 1.02)
    one.set_xlabel("pair of directions")
    one.set_ylabel("canonical correlation")
    return figure


def plot_all(results: Mapping[str, Any], curves: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Plot]:
    """Draw all figures of a diagnosis. curves: bands over token rank by name; arrays: as in metrics.npz."""
    rank = (
        "Ranks: by frequency in the corpus; tokens that it lacks are left out."
        if results["rank"]["by"] == "corpus"
        else "Ranks: token ids, which in vocabularies of BPE and WordPiece roughly follow frequency."
    )
    bands = "Line: median by rank; band: the middle 80 % of the tokens."
    found = [Plot("norms", f"Norms of the rows against token rank. {bands} {rank}", norms_figure(results, curves))]
    if results["fact"] == "untied":
        found += [
            Plot(
                "cosines",
                "How near the two rows of a token are: mapped by least squares in either direction (tables centred), and as "
                f"they are. Left: all scored tokens; right: against token rank. {bands} {rank}",
                cosines_figure(results, curves, arrays),
            ),
            Plot(
                "canonical",
                "Canonical correlations of the two tables: how much of each, direction by direction, can be read off the "
                "other. Dotted: about the largest of unrelated tables of this size.",
                canonical_figure(results, arrays["canonical"]),
            ),
        ]
    return found


# The page.


def _stored(results: Mapping[str, Any]) -> dict[str, str]:
    def table(found: Mapping[str, Any] | None) -> str:
        if found is None:
            return "none is stored"
        turned = ", stored transposed" if found["transposed"] else ""
        rows, width = found["shape"]
        stored = f"{found['dtype']}{turned}, {memory(found['nbytes'])}"
        return f"{found['name']} in {found['file']}: {rows:,} tokens x {width:,}, {stored}"

    fact = {
        "absent": "one table, for both roles" if results["head"] else "one table; no output over tokens",
        "equal": "yes: the two stored tables are equal value by value",
        "untied": f"no: {results['differing_rows'] or 0:,} of {results['tables']['input']['shape'][0]:,} rows differ"
        + (f", by at most {number(results['largest_difference'])}" if results["largest_difference"] is not None else ""),
    }[results["fact"]]
    architecture = ", ".join(map(str, results["architectures"])) or "not named"
    rank = results["rank"]
    ranked = f"by id (no corpus given); tokenizer: {rank['tokenizer'] or 'none found'}"
    if rank["by"] == "corpus":
        ranked = (
            f"by frequency in {rank['corpus']}: {rank['tokens']:,} tokens, {rank['different']:,} different; {rank['tokenizer']}"
        )
    return {
        "checkpoint": results["checkpoint"],
        "family": f"{results['family'] or 'unknown'} (model_type {results['model_type']}; {architecture})",
        "parameters stored": f"{results['parameters']:,}",
        "input table": table(results["tables"]["input"]),
        "output table": table(results["tables"]["output"]),
        "tied in fact": fact,
        "flag": agreement(results),
        "output bias": f"{results['bias']}: it can hold how frequent a token is, so that norms need not"
        if results["bias"]
        else "none found",
        "token rank": ranked,
        "time": duration(results["seconds"]),
    }


def _norm_rows(results: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for role, norms in results["norms"].items():
        unseen = number(norms["unseen_median"])
        levels = [number(norms[name]) for name in ("low", "median", "high")]
        rows.append([role, *levels, number(norms["spearman"]), unseen, f"{norms['zero']:,}"])
    return rows


def _scores(results: Mapping[str, Any]) -> list[list[str]]:
    aligned, shared, canonical = results["alignment"], results["neighbours"], results["canonical"]
    squares, chance, interval = aligned["least_squares"], aligned["chance"], shared["interval"]
    within = f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "-"
    return [
        ["cosine, rows as they are", number(aligned["identity"]), "-", "about 0"],
        ["cosine, orthogonal Procrustes", number(aligned["procrustes"]), "-", "-"],
        ["cosine, least squares from the input", number(squares["from_input"]), "-", number(chance["from_input"])],
        ["cosine, least squares from the output", number(squares["from_output"]), "-", number(chance["from_output"])],
        [f"neighbours shared, of {shared['k']}", number(shared["estimate"]), within, number(shared["chance"])],
        [f"canonical correlation, mean of {canonical['number']:,}", number(canonical["mean"]), "-", "-"],
    ]


def _tokens(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    def count(value: int | None) -> str:
        return "-" if value is None else f"{value:,}"

    values = ("cosine", "cosine_as_is", "norm_input", "norm_output")
    return [
        [
            row["text"] or f"id {row['id']}",
            f"{row['id']:,}",
            f"{row['rank']:,}",
            count(row["count"]),
            *(number(row[v]) for v in values),
        ]
        for row in rows
    ]


def numbers(results: Mapping[str, Any]) -> dict[str, tuple[str, list[str], list[list[str]]]]:
    """Return the tables of the page: heading -> (words, columns, rows)."""
    columns = ["table", "10 %", "median", "90 %", "Spearman with rank", "median, not in the corpus", "rows of norm 0"]
    norms = {"Norms of the rows": ("", columns, _norm_rows(results))}
    if results["fact"] != "untied":
        return norms
    scored, rows = results["alignment"]["scored"], results["tables"]["input"]["shape"][0]
    sampled = "" if scored == rows else f" Maps are fitted to all {rows:,} tokens and scored on {scored:,}, drawn at random."
    queries = results["neighbours"]["queries"]
    words = (
        "Mean cosine of a token's row in one table, mapped, with its row in the other. Procrustes and least squares work on "
        "centred tables; both are fitted to the tokens that they score, so that unrelated tables do not give 0."
        f"{sampled} Neighbours of {queries:,} tokens, by cosine, among all {rows:,}. Chance: of unrelated tables."
    )
    token_columns = ["token", "id", "rank", "count", "cosine, mapped", "cosine, as is", "norm, input", "norm, output"]
    return norms | {
        "How the two tables relate": (words, ["score", "value", "95 % interval", "chance"], _scores(results)),
        "Tokens whose roles differ most": (
            "Among the 10,000 first ranks. Mapped: the mean of both least-squares directions.",
            token_columns,
            _tokens(results["tokens"]["apart"]),
        ),
        "Tokens whose roles differ least": ("", token_columns, _tokens(results["tokens"]["near"])),
    }


def _notes(results: Mapping[str, Any]) -> list[str]:
    notes = []
    flag, fact = results["flag"]["tied"], results["fact"]
    if flag is not None and flag != (fact != "untied"):
        notes.append(agreement(results))
    differing, rows = results["differing_rows"], results["tables"]["input"]["shape"][0]
    if fact == "untied" and differing is not None and 2 * differing < rows:
        notes.append(
            f"Only {differing:,} of {rows:,} rows differ: a tied table of which some rows were changed later, rather than two."
        )
    if not results["head"]:
        notes.append(f"config.json names {', '.join(map(str, results['architectures']))}, which has no output over tokens.")
    return notes


def page(results: Mapping[str, Any], facts: Mapping[str, Any], settings_text: str, pictures: Sequence[tuple[str, Path]]) -> str:
    """Return the HTML page of a diagnosis. facts: environment.json; pictures: captions and PNG files."""
    return report.template("page.html.j2", Path(__file__).parent).render(
        title=f"Input and output embeddings of {Path(results['checkpoint']).name or results['checkpoint']}",
        question="Should these embeddings be tied?",
        verdict=verdict(results),
        notes=_notes(results),
        stored=_stored(results),
        numbers=numbers(results),
        figures=[(caption, report.embed(png)) for caption, png in pictures],
        confounds=[*results["notes"], *CONFOUNDS],
        reproduce=reproduction(facts, settings_text),
    )
