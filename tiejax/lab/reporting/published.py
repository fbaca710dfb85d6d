"""Published numbers: a run's entry in docs/results as JSON, and the tables of a page rendered from it.

A page marks a table by two comments:

    <!-- table: exor.json claims -->
    ...
    <!-- end of table -->

The lines between them are rendered from the file in the page's folder: `claims`, or a table of the run's report by title. So no
number is copied by hand, and outdated pages can be detected.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiejax.lab.reporting.finding import EARLIER, is_current
from tiejax.lab.reporting.words import cells

Table = tuple[list[str], list[list[str]]]
BLOCK = re.compile(r"(<!-- table: (\S+) (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
BAR = r"\|"  # an escaped bar, which does not end a cell
ONE_BY_ONE = "Numbers: every "  # title of tables with a row per seed or per pair of words, which are not published
# The fields of claims that are published; `statistic` is what the rules of earlier versions called `estimand`.
CLAIM_FIELDS = (
    "id", "statement", "statistic", "family", "kind", "goal", "sign", "estimand", "unit", "differences", "n", "estimate",
    "interval", "interval_adjusted", "adjusted_level", "p", "p_adjusted", "margin", "smallest_detectable", "seeds_needed",
    "look", "verdict", "note", "latest",
)  # fmt: skip


def published_run(
    results: Mapping[str, Any], facts: Mapping[str, Any], tables: Mapping[str, Table], command: str
) -> dict[str, Any]:
    """Return the published part of a run: claims, tables, timing and environment.

    results, facts: its results.json and environment.json. tables: the tables of its report, by title. command: the command
    that repeats the run (the recorded one contains machine-specific paths).
    """
    return {
        "study": results["experiment"],
        "command": command,
        "commit": facts["git_commit"],
        "date": facts["date"][:10],
        "python": facts["python"],
        "versions": facts["versions"],
        "devices": facts["devices"],
        "resumed": len(facts.get("resumed", [])),
        "seeds": len(results["seeds"]),
        "excluded_seeds": results["excluded_seeds"],
        "timing": results["timing"],
        "claims": [{field: claim[field] for field in CLAIM_FIELDS if field in claim} for claim in results["claims"]],
        "tables": {
            title: {"columns": columns, "rows": rows}
            for title, (columns, rows) in tables.items()
            if not title.startswith(ONE_BY_ONE)
        },
    }


def render_tables(page: str, folder: Path) -> str:
    """Return a Markdown page with all its tables rendered from the JSON files in its folder.

    Raises ValueError if a file or a table in a file does not exist.
    """

    def write(block: re.Match[str]) -> str:
        begin, file, name, end = block.groups()
        if not (folder / file).is_file():
            raise ValueError(f"{file}: not found, but a page refers to it; add its run first")
        found = json.loads((folder / file).read_text())
        return f"{begin}{markdown(*_table(found, name, file))}\n{end}"

    return BLOCK.sub(write, page)


def _table(found: Mapping[str, Any], name: str, file: str) -> Table:
    if name == "claims":
        return _claims(found["claims"])
    if name not in found["tables"]:
        raise ValueError(f"{file}: unknown table {name!r}; it has claims, {', '.join(map(repr, found['tables']))}")
    table = found["tables"][name]
    return table["columns"], table["rows"]


def _claims(claims: list[dict[str, Any]]) -> Table:
    """Return the table of claims: statement, estimand, estimate, intervals, adjusted p, n, verdict."""
    rows = []
    for claim in claims:
        estimate, interval, adjusted, p_adjusted, n = cells(claim)
        current = is_current(claim)
        unit = f" ({claim['unit']})" if claim.get("unit") else ""
        about = claim["estimand"] + unit if current else claim["statistic"]
        verdict = claim["verdict"] if current else f"{claim['verdict']} ({EARLIER})"
        rows.append([claim["statement"], about, estimate, interval, adjusted, p_adjusted, n, verdict])
    return ["claim", "estimand", "estimate", "95 % interval", "adjusted interval", "p, adjusted", "n", "verdict"], rows


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |" for line in lines)
