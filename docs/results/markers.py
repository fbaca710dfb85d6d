"""Marked parts of Markdown pages, rendered from the published runs in docs/results.

A page marks a table, a value of a claim, or a cell of a table by comments:

    <!-- table: exor.json claims -->
    ...
    <!-- end of table -->

    Tying costs <!-- value: exor.json price/main estimate -->0.1 nats<!-- end -->: <!-- value: exor.json price/main verdict
    -->supported<!-- end -->. <!-- cell: exor.json Numbers: solved :: untied :: seeds -->12<!-- end --> models solve it.

What stands between two comments is rendered from the file: a table is `claims`, `registered` (without the exploratory
claims and with fewer columns; `registered: price, solved` has those with the ids `price`, `price/...`, `solved`, ...) or a
table of the run's report, by title; a value is a field of a claim (`FIELDS`); a cell is named by the title of its table, its
row (first column) and its column. Beginnings of titles are enough if they are unique. So no number is copied by hand, and
outdated pages can be detected.

In Markdown a line that begins with a comment ends its paragraph or list. Rendering therefore moves values and cells that begin
a line to the end of the line before, or puts an empty element in front of those that begin a paragraph or a list item.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.results.published import Table
from tiejax.lab.reporting.finding import about, cells, is_equivalent, opening, with_unit
from tiejax.lab.reporting.words import interval_words, number
from tiejax.statistics.claims import DECIDED

NAME, INSIDE = r"((?:(?!-->).)+?)", r"((?:(?!<!--).)*)"
TABLE = re.compile(rf"(<!-- table: (\S+) {NAME} -->\n){INSIDE}(<!-- end of table -->)", re.DOTALL)
INLINE = re.compile(rf"(<!-- (value|cell): (\S+)\s{NAME}\s-->){INSIDE}(<!-- end -->)", re.DOTALL)
BEGIN = re.compile(r"<!-- (?:table|value|cell):")
# The beginning of a line up to a value or a cell: spaces, and the sign of a list item.
FIRST = re.compile(r" *(?P<item>(?:[-*+]|\d+\.) +)?(?=<!-- (?:(?:value|cell): |end -->))")
EMPTY = "<span></span>"  # what such a line begins with if there is no line to which it could be moved
NO_TEXT = ("|", "#", "<!--", "```")  # how lines begin that are no text
CELL = " :: "  # between table, row and column of a cell
BAR, STAR = r"\|", r"\*"  # escaped: a bar that does not end a cell, a star that does not begin emphasis
# At most 5 % of simulated studies of differences that are not symmetric are false, with at least FEWEST seeds and a skewness of
# at most MOST_SKEWED, or with at least MANY seeds.
FEWEST, MOST_SKEWED, MANY = 32, 2.0, 256

Row = Mapping[str, Any]
FIELDS: dict[str, Callable[[Row], str]] = {
    "estimate": lambda row: with_unit(row["estimate"], row),
    "interval": lambda row: interval_words(row["interval"]),
    "interval_adjusted": lambda row: interval_words(row["interval_adjusted"]),
    "p_adjusted": lambda row: number(row["p_adjusted"]),
    "n": lambda row: f"{row['n']:,}",
    "look": lambda row: f"{row['look']:,}",
    "margin": lambda row: with_unit(row["margin"], row),
    "smallest_detectable": lambda row: with_unit(row["smallest_detectable"], row),
    "seeds_needed": lambda row: number(row["seeds_needed"]),
    "verdict": lambda row: verdict(row),
    "statement": lambda row: str(row["statement"]),
    "sentence": opening,
}


def render(page: str, folder: Path) -> str:
    """Return a Markdown page with its marked parts rendered from the JSON files in `folder`.

    Raises ValueError if a file, table, claim or field does not exist, or a mark has no end.
    """
    begun, complete = len(BEGIN.findall(page)), len(TABLE.findall(page)) + len(INLINE.findall(page))
    if begun != complete:
        raise ValueError(
            f"{begun} marked parts begin, but {complete} are complete; expected <!-- KIND: FILE NAME -->, text, end"
        )

    def write_table(block: re.Match[str]) -> str:
        begin, file, name, _, end = block.groups()
        return f"{begin}{markdown(*_table(_read(folder, file), ' '.join(name.split()), file))}\n{end}"

    def write_inline(part: re.Match[str]) -> str:
        begin, kind, file, name, _, end = part.groups()
        find = _value if kind == "value" else _cell
        return f"{begin}{find(_read(folder, file), ' '.join(name.split()), file).replace('|', BAR)}{end}"

    return joined(INLINE.sub(write_inline, TABLE.sub(write_table, page)))


def joined(page: str) -> str:
    """Return a page in which no line begins with a value or a cell, so that comments do not end paragraphs or lists."""
    lines: list[str] = []
    for line in page.split("\n"):
        first = FIRST.match(line)
        if first is None:
            lines.append(line)
        elif first["item"] is None and lines and lines[-1].strip() and not lines[-1].lstrip().startswith(NO_TEXT):
            lines[-1] = f"{lines[-1].rstrip()} {line.lstrip()}"
        else:
            lines.append(f"{first[0]}{EMPTY}{line[first.end() :]}")
    return "\n".join(lines)


def _read(folder: Path, file: str) -> dict[str, Any]:
    if not (folder / file).is_file():
        raise ValueError(f"{file}: not found, but a page refers to it; add its run first")
    found: dict[str, Any] = json.loads((folder / file).read_text())
    return found


def _table(found: Mapping[str, Any], name: str, file: str) -> Table:
    if name == "claims":
        return _claims(found["claims"])
    if name.partition(":")[0] == "registered":
        return _registered(found["claims"], name.partition(":")[2], file)
    matching = [title for title in found["tables"] if title.startswith(name)]
    if name not in matching and len(matching) != 1:
        raise ValueError(f"{file}: unknown table {name!r}; it has claims, registered, {', '.join(map(repr, found['tables']))}")
    table = found["tables"][name if name in matching else matching[0]]
    return table["columns"], table["rows"]


def _cell(found: Mapping[str, Any], name: str, file: str) -> str:
    title, row, column = ([*name.split(CELL), "", ""])[:3]
    columns, rows = _table(found, title, file)
    by_name = {cells[0]: dict(zip(columns, cells, strict=True)) for cells in rows}
    if column not in by_name.get(row, {}):
        raise ValueError(f"{file}: no cell {name!r}; the table has rows {', '.join(by_name)} and columns {', '.join(columns)}")
    return by_name[row][column]


def _value(found: Mapping[str, Any], name: str, file: str) -> str:
    claim, _, field = name.rpartition(" ")
    rows = {row["id"]: row for row in found["claims"]}
    if claim not in rows:
        raise ValueError(f"{file}: unknown claim {claim!r}; it has {', '.join(rows)}")
    if field not in FIELDS:
        raise ValueError(f"{file}: unknown field {field!r} of a claim; expected one of {', '.join(FIELDS)}")
    return FIELDS[field](rows[claim])


def verdict(row: Row) -> str:
    """Return the verdict of a claim, and whether it is within the margin."""
    within = ", within the margin" if is_equivalent(row) and row["goal"] == "difference" else ""
    return f"{row['verdict']}{within}"


def flagged(row: Row) -> str:
    """Return the verdict of a claim for a table, with the skewness of a decided one whose differences are not symmetric.

    A star marks what is beyond the simulated error rates.
    """
    skewness = row.get("skewness")
    if skewness is None or row["verdict"] not in DECIDED:
        return verdict(row)
    return f"{verdict(row)}; skewness {number(skewness)}{'' if is_covered(row) else STAR}"


def is_covered(row: Row) -> bool:
    """Whether simulations say how often a verdict about differences of this skewness is wrong."""
    skewness = row.get("skewness") or 0.0
    return not skewness or row["n"] >= MANY or (row["n"] >= FEWEST and abs(skewness) <= MOST_SKEWED)


def _claims(claims: Sequence[Row]) -> Table:
    """Return the table of claims: statement, estimand, estimate, intervals, adjusted p, n, verdict.

    If none is tested, the columns of tests are left out.
    """
    columns = ["claim", "estimand", "estimate", "95 % interval", "adjusted interval", "p, adjusted", "n", "verdict"]
    rows = [[claim["statement"], about(claim), *cells(claim), flagged(claim)] for claim in claims]
    if any(claim["verdict"] != "exploratory" for claim in claims):
        return columns, rows
    kept = [columns.index(name) for name in ("claim", "estimand", "estimate", "95 % interval", "n")]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _registered(claims: Sequence[Row], selection: str, file: str) -> Table:
    """Return the table of the claims that are not exploratory, without p and the adjusted interval.

    selection: ids, or their beginnings up to a slash, separated by a comma and a space; "" selects all.
    """
    rows = [claim for claim in claims if claim["verdict"] != "exploratory"]
    chosen = []
    for name in filter(None, selection.strip().split(", ")):
        matching = [claim for claim in rows if f"{claim['id']}/".startswith(f"{name}/")]
        if not matching:
            raise ValueError(f"{file}: unknown registered claim {name!r}; it has {', '.join(claim['id'] for claim in rows)}")
        chosen += matching
    table = []
    for claim in chosen or rows:
        estimate, interval, _, _, n = cells(claim)
        table.append([claim["statement"], about(claim), estimate, interval, n, flagged(claim)])
    return ["claim", "estimand", "estimate", "95 % interval", "n", "verdict"], table


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |" for line in lines)
