"""What is kept of a run whose numbers are published, and the tables of its page, which are rendered from that.

A page says where a table stands:

    <!-- table: exor.json claims -->
    ...
    <!-- end of table -->

and what is between the two lines is written from the file beside the page: `claims`, or a table of the run's report by its
title. So no number is copied by hand, and a page that is out of date can be told.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiejax.lab.reporting.words import number

Table = tuple[list[str], list[list[str]]]
BLOCK = re.compile(r"(<!-- table: (\S+) (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
BAR = r"\|"  # which ends no cell
ONE_BY_ONE = "Numbers: every "  # a table that is as long as the run has seeds, or pairs of words, and stays with the run
OF_CLAIM = ("id", "statement", "statistic", "estimate", "interval", "p_adjusted", "n", "verdict", "margin")


def kept(results: Mapping[str, Any], facts: Mapping[str, Any], tables: Mapping[str, Table], command: str) -> dict[str, Any]:
    """Return what is published of a run: claims, tables, timing, and what it was made with.

    results, facts: its results.json and environment.json. tables: of its report, by title. command: that makes it, as a reader
    would type it (the run's own names folders of its machine).
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
        "claims": [{field: claim[field] for field in OF_CLAIM if field in claim} for claim in results["claims"]],
        "tables": {
            title: {"columns": columns, "rows": rows}
            for title, (columns, rows) in tables.items()
            if not title.startswith(ONE_BY_ONE)
        },
    }


def rendered(page: str, folder: Path) -> str:
    """Return a page in Markdown with all its tables written from the files in its folder.

    Raises ValueError, naming the table, if a file has none of that name, and naming a file that is not there.
    """

    def write(block: re.Match[str]) -> str:
        begin, file, name, end = block.groups()
        if not (folder / file).is_file():
            raise ValueError(f"{file} is named by a page and is not there: keep its run first")
        found = json.loads((folder / file).read_text())
        return f"{begin}{markdown(*_table(found, name, file))}\n{end}"

    return BLOCK.sub(write, page)


def _table(found: Mapping[str, Any], name: str, file: str) -> Table:
    if name == "claims":
        return _claims(found["claims"])
    if name not in found["tables"]:
        raise ValueError(f"{file} has no table {name!r}; it has claims, {', '.join(map(repr, found['tables']))}")
    table = found["tables"][name]
    return table["columns"], table["rows"]


def _claims(claims: list[dict[str, Any]]) -> Table:
    """Write claims as the pages show them: what is claimed, what is estimated, its median, interval, adjusted p, verdict."""
    rows = [
        [
            claim["statement"],
            claim["statistic"],
            number(claim["estimate"]),
            " to ".join(map(number, claim["interval"])) if claim["interval"] else "-",
            number(claim["p_adjusted"]),
            claim["verdict"],
        ]
        for claim in claims
    ]
    return ["claim", "what is estimated", "estimate", "95 % interval", "p, adjusted", "verdict"], rows


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Write a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |" for line in lines)
