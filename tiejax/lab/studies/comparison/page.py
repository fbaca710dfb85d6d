"""The page of a comparison, from the body of its results.json."""

import json
from collections.abc import Mapping
from typing import Any

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import reproduction
from tiejax.lab.reporting.words import counted, number
from tiejax.lab.studies.comparison.beside import at_odds, verdicts

NOTE = (
    "Verdicts are those of the runs, each after the adjustment over its own claims. That one run decides a claim and another "
    "does not is no tested difference between the two: look at estimates and intervals."
)


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return what the runs agree on, and in which settings they differ."""
    runs, claims, odds = len(results["runs"]), results["claims"], at_odds(results["claims"])
    shared = [claim for claim in claims if len(verdicts(claim)) == runs]
    agreed = sum(len(set(verdicts(claim))) == 1 for claim in shared)
    words = [f"Of {counted(len(shared), 'claim')} that all {runs} runs make, {agreed} have the same verdict in all."]
    if odds:
        words.append(f"At odds, supported by one run and contradicted by another: {', '.join(odds)}.")
    if alone := len(claims) - len(shared):
        words.append(f"{counted(alone, 'claim')} more {'is' if alone == 1 else 'are'} made by some of the runs only.")
    differ = ", ".join(results["settings"])
    return [" ".join(words), f"The runs differ in {differ}." if differ else "The runs have the same settings."]


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the page: claims, and settings that differ."""
    labels = list(results["runs"])
    claims = [[claim["id"], *(_cell(row) for row in claim["rows"])] for claim in results["claims"]]
    settings = [[name, *map(json.dumps, values)] for name, values in results["settings"].items()]
    shown = {"Claims: estimate, 95 % interval, adjusted p, verdict": (["claim", *labels], claims)}
    return shown | ({"Settings that differ": (["setting", *labels], settings)} if settings else {})


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    interval = f" ({number(row['interval'][0])} to {number(row['interval'][1])})" if row["interval"] else ""
    return f"{number(row['estimate'])}{interval}, p {number(row['p_adjusted'])}, {row['verdict']}"


def page(run: RunOnPage) -> str:
    """Return the page."""
    results = run.results
    of_runs = {
        label: f"{about['folder']}, {counted(about['seeds'], 'seed')}"
        + (f", left out: {', '.join(map(str, about['excluded_seeds']))}" if about["excluded_seeds"] else "")
        for label, about in results["runs"].items()
    }
    return report.render(
        title=f"{len(of_runs)} runs of {results['study']}",
        question="Do these runs find the same, and in what were they made differently?",
        finding=finding(results),
        setting=of_runs,
        notes=[NOTE],
        claims={},
        figures=run.pictures,
        numbers=tables(results),
        reproduce=reproduction(run.facts, run.settings_text),
    )
