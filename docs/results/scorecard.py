"""Counts of the rows of the scorecard, rendered from its tables; findings are counted apart from parameter counts.

A table of the scorecard begins with the column "result of the paper" and ends with the column "verdict". The counts stand
between two comments, `<!-- counts -->` and `<!-- end of counts -->`.
"""

import re
import textwrap
from collections import Counter
from typing import NamedTuple

from docs.results.markers import markdown
from tiejax.lab.reporting.words import counted

BAR = re.compile(r"(?<!\\)\|")
COUNTS = re.compile(r"(<!-- counts -->\n).*?(<!-- end of counts -->)", re.DOTALL)
VERDICTS = ("same", "different", "undecided", "not tested", "not run")
NEAR = "within 2 %"
OF_PARAMETERS = ("same", NEAR, "different")
SMALLER, PARTLY = "at a smaller setting", "in part"
# Rows of parameter counts: all below such a heading, and those whose first cell begins so.
PARAMETERS_BELOW, PARAMETERS = re.compile(r": parameters$"), re.compile(r"Parameters\b")


class Row(NamedTuple):
    """A row of the scorecard: the heading of its system, whether it is a count of parameters, its verdict, whether that is at a
    smaller setting than the paper's, and whether it is about a part of the result only."""

    system: str
    parameters: bool
    verdict: str
    smaller: bool
    partly: bool


def rows(page: str) -> list[Row]:
    """Return the rows of all tables of the scorecard; raises ValueError if a verdict is unknown."""
    system = heading = ""
    table, found = False, []
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
            system = heading if line.startswith("## ") else system
        if not line.startswith("|"):
            table = False
        elif line.startswith("| result of the paper"):
            table = True
        elif table and not line.startswith("| ---"):
            found.append(_row(line, system, heading))
    return found


def _row(line: str, system: str, heading: str) -> Row:
    cells = [cell.strip() for cell in BAR.split(line)[1:-1]]
    verdict = next((word for word in (*VERDICTS, NEAR) if cells[-1].startswith(word)), None)
    if verdict is None:
        raise ValueError(f"{cells[0]}: expected a verdict that begins with {', '.join(VERDICTS)}, got {cells[-1]!r}")
    return Row(
        system,
        bool(PARAMETERS_BELOW.search(heading) or PARAMETERS.match(cells[0])),
        verdict,
        SMALLER in cells[-1],
        cells[-1].startswith(f"same {PARTLY}"),
    )


def render(page: str) -> str:
    """Return the page with its counts."""
    return COUNTS.sub(lambda block: f"{block[1]}{_counts(rows(page))}\n{block[2]}", page)


def _counts(found: list[Row]) -> str:
    systems = dict.fromkeys(row.system for row in found)
    lines = [_line(f"[{name}](#{name.lower().replace(' ', '-')})", [r for r in found if r.system == name]) for name in systems]
    columns = ["system", "findings", *VERDICTS, "parameter counts", *OF_PARAMETERS]
    findings, parameters = ([row for row in found if row.parameters == kind] for kind in (False, True))
    smaller = sum(row.smaller and row.verdict == "same" for row in findings)
    partly = sum(row.partly for row in findings)
    limits = [f"{smaller} of them {SMALLER} than the paper's"] if smaller else []
    limits += [f"{partly} of them {PARTLY}"] if partly else []
    limited = f" ({', '.join(limits)})" if limits else ""
    of_findings, of_parameters = (Counter(row.verdict for row in kind) for kind in (findings, parameters))
    sentence = (
        f"Of {counted(len(findings), 'finding')}, {of_findings['same']} are the same{limited}, "
        f"{of_findings['different']} different, {of_findings['undecided']} undecided, {of_findings['not tested']} not tested, "
        f"and {of_findings['not run']} not run. Of {counted(len(parameters), 'parameter count')}, which need no training, "
        f"{of_parameters['same']} are the same, {of_parameters[NEAR]} {NEAR}, and {of_parameters['different']} different."
    )
    return f"{textwrap.fill(sentence, 120)}\n\n{markdown(columns, [*lines, _line('all', found)])}\n"


def _line(name: str, found: list[Row]) -> list[str]:
    findings = [row.verdict for row in found if not row.parameters]
    parameters = [row.verdict for row in found if row.parameters]
    counts = [len(findings), *map(findings.count, VERDICTS), len(parameters), *map(parameters.count, OF_PARAMETERS)]
    return [name, *map(str, counts)]
