"""The page about a checkpoint's input and output tables, from results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.checkpoints.diagnose.verdict import agreement, verdict
from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.words import duration, number
from tiejax.system.memory import size_words

UNCOUNTED = "unknown: some shards were not downloaded, and their headers could not be read from the hub"
LIMITS = (
    "A diagnosis describes two tables after one training run. It does not show how the other choice would train: if the answer "
    "matters, train both with several seeds. Weight decay acts once on a tied table and twice on an untied pair, and both "
    "roles of a tied table start at one scale. The gain of the last normalisation multiplies the columns of the output table, "
    "but is not part of it: compare how norms change with rank, not their levels. Rows of tokens that rarely occur are trained "
    "little in the input table, so that their initial values add to any distance between the tables."
)


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


def numbers(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
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
    agrees = results.get("check", {}).get("answer") == "agrees"
    return "one table, for both roles" if agrees else "one table; whether it has both roles is unknown"


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
    return report.render(
        run,
        title=f"Input and output embeddings of {Path(results['checkpoint']).name or results['checkpoint']}",
        question="Should these embeddings be tied?",
        finding=verdict(results),
        setting={**_stored(results), **_measures(results), "limits": LIMITS},
        notes=[*_notes(results), *results["notes"]],
        numbers=numbers(results),
    )
