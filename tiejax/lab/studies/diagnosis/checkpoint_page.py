"""The page about a checkpoint's input and output tables, from the body of results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.checkpoints.diagnose.verdict import agreement, memory, verdict
from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.sections import reproduction
from tiejax.lab.reporting.words import duration, number

TEMPLATE = Path(__file__).with_name("checkpoint_page.html.j2")
CONFOUNDS = (
    "It describes where two tables stand after one training; it does not prove what training with the other choice would do. "
    "Train both, with several seeds, where the answer matters.",
    "Weight decay acts once on a tied table and twice on an untied pair, and one initial scale suits one of the two roles: "
    "tied and untied models differ in both, whatever the tables say.",
    "The last normalisation's gain multiplies the columns of the output table, and is not in it. Norms of the two tables "
    "are on scales of their own: compare their course over the ranks, not their levels.",
    "Tokens that training hardly met keep the direction they were drawn with, and add to any distance between the tables.",
)


def _table_words(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "none is stored"
    transposed = ", stored transposed" if facts["transposed"] else ""
    rows, width = facts["shape"]
    stored = f"{facts['dtype']}{transposed}, {memory(facts['nbytes'])}"
    return f"{facts['name']} in {facts['file']}: {rows:,} tokens x {width:,}, {stored}"


def _rank_words(rank: Mapping[str, Any]) -> str:
    if rank["by"] != "corpus":
        return f"by id (no corpus given); tokenizer: {rank['tokenizer'] or 'none found'}"
    return f"by frequency in {rank['corpus']}: {rank['tokens']:,} tokens, {rank['different']:,} different; {rank['tokenizer']}"


def _stored(results: Mapping[str, Any]) -> dict[str, str]:
    """Write what is stored, and what is known around it, by name."""
    fact = {
        "absent": "one table, for both roles" if results["head"] else "one table; no output over tokens",
        "equal": "yes: the two stored tables are equal value by value",
        "untied": f"no: {results['differing_rows'] or 0:,} of {results['tables']['input']['shape'][0]:,} rows differ"
        + (f", by at most {number(results['largest_difference'])}" if results["largest_difference"] is not None else ""),
    }[results["fact"]]
    architecture = ", ".join(map(str, results["architectures"])) or "not named"
    return {
        "checkpoint": results["checkpoint"],
        "family": f"{results['family'] or 'unknown'} (model_type {results['model_type']}; {architecture})",
        "parameters stored": f"{results['parameters']:,}",
        "input table": _table_words(results["tables"]["input"]),
        "output table": _table_words(results["tables"]["output"]),
        "tied in fact": fact,
        "flag": agreement(results),
        "output bias": f"{results['bias']}: it can hold how frequent a token is, so that norms need not"
        if results["bias"]
        else "none found",
        "token rank": _rank_words(results["rank"]),
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
    """Return what a reader should be warned of, beside what the verdict says."""
    notes = []
    differing, rows = results["differing_rows"], results["tables"]["input"]["shape"][0]
    if results["fact"] == "untied" and differing is not None and 2 * differing < rows:
        notes.append(
            f"Only {differing:,} of {rows:,} rows differ: a tied table of which some rows were changed later, rather than two."
        )
    if not results["head"]:
        notes.append(f"config.json names {', '.join(map(str, results['architectures']))}, which has no output over tokens.")
    return notes


def page(results: Mapping[str, Any], facts: Mapping[str, Any], settings_text: str, pictures: Sequence[tuple[str, Path]]) -> str:
    """Return the HTML page. facts: environment.json; settings_text: the diagnosis's own; pictures: captions and PNG files."""
    return report.render(
        title=f"Input and output embeddings of {Path(results['checkpoint']).name or results['checkpoint']}",
        question="Should these embeddings be tied?",
        finding=verdict(results),
        setting=_stored(results),
        notes=_notes(results),
        claims={},
        figures=pictures,
        numbers=numbers(results),
        reproduce=reproduction(facts, settings_text),
        template=TEMPLATE,
        confounds=[*results["notes"], *CONFOUNDS],
    )
