"""The page of runs side by side, made from its results.json."""

import json
from collections.abc import Mapping
from typing import Any

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.finding import EARLIER, about, is_current, opening
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import reproduction
from tiejax.lab.reporting.words import counted, interval_words, number
from tiejax.lab.studies.compare.compare import DECIDED, at_odds, is_tested, verdicts

NOTE = (
    "A claim is decided if its verdict is supported or contradicted. Verdicts are those of the runs, each adjusted for the "
    "number of claims in that run. If one run decides a claim and another does not, that is not a tested difference between "
    "the two: compare their estimates and intervals."
)


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return how many claims are decided and agree, and the settings in which the runs differ."""
    runs, claims = len(results["runs"]), [claim for claim in results["claims"] if is_tested(claim)]
    odds = at_odds(claims)
    shared = [verdicts(claim) for claim in claims if len(verdicts(claim)) == runs]
    words = [_agreement(shared)]
    if odds:
        words.append(f"Supported by one run and contradicted by another: {', '.join(odds)}.")
    if partly := sum(bool(set(found) & DECIDED) and not set(found) <= DECIDED for found in shared):
        words.append(f"{counted(partly, 'claim')} {_are(partly)} decided in some runs and undecided in others.")
    if alone := len(claims) - len(shared):
        words.append(f"{counted(alone, 'claim')} {_are(alone)} not made by all runs.")
    rows = [row for claim in claims for row in claim["rows"] if row is not None]
    if earlier := sum(not is_current(row) for row in rows):
        words.append(f"{earlier} of {counted(len(rows), 'verdict')} {_are(earlier)} by {EARLIER}.")
    differ = ", ".join(results["settings"])
    across = [opening(row) for row in results["across"]]
    return [*across, " ".join(words), f"The runs differ in {differ}." if differ else "The runs have the same settings."]


def _agreement(shared: list[list[str]]) -> str:
    """Return a sentence: how many of the claims that all runs make are decided in every run, and how many of these agree."""
    if not shared:
        return "No claim is made by all runs."
    decided = [set(found) for found in shared if set(found) <= DECIDED]
    agreeing = sum(len(found) == 1 for found in decided)
    words = f"{len(decided)} of {counted(len(shared), 'claim')} {_are(len(decided))} decided in every run"
    if not decided:
        return f"{words}."
    if agreeing == len(decided):
        return f"{words}; {'its verdicts agree' if agreeing == 1 else 'these agree'}."
    return f"{words}; {agreeing if agreeing else 'none'} of these {'agrees' if agreeing < 2 else 'agree'}."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the page, by title: the claims, and the settings that differ."""
    labels = list(results["runs"])
    claims = {tested: [_line(claim) for claim in results["claims"] if is_tested(claim) == tested] for tested in (True, False)}
    settings = [[name, *map(json.dumps, values)] for name, values in results["settings"].items()]
    titled = {
        "Claims: estimate, 95 % interval, adjusted interval, adjusted p, n, verdict": (["claim", *labels], claims[True]),
        "Exploratory, estimated but not tested: estimate, 95 % interval, n": (["quantity", *labels], claims[False]),
        "Settings that differ": (["setting", *labels], settings),
    }
    return {title: (columns, rows) for title, (columns, rows) in titled.items() if rows}


def _line(claim: Mapping[str, Any]) -> list[str]:
    """Return a row of the table: the claim with its estimand, and the result of each run."""
    described = next((row for row in claim["rows"] if row is not None and is_current(row)), None)
    return [f"{claim['id']}: {about(described)}" if described else claim["id"], *map(_cell, claim["rows"])]


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    interval = f" ({interval_words(row['interval'])})" if row["interval"] else ""
    adjusted = f", adjusted {interval_words(row['interval_adjusted'])}" if row.get("interval_adjusted") else ""
    tested = f", p {number(row['p_adjusted'])}" if row["p_adjusted"] is not None else ""
    verdict = "" if row["verdict"] == "exploratory" else f", {row['verdict']}{'' if is_current(row) else f' ({EARLIER})'}"
    return f"{number(row['estimate'])}{interval}{adjusted}{tested}, n {row['n']}{verdict}"


def page(run: RunOnPage) -> str:
    """Return the page as HTML."""
    results = run.results
    runs = {
        label: f"{about['folder']}, {counted(about['seeds'], 'seed')}"
        + (f", excluded: {', '.join(map(str, about['excluded_seeds']))}" if about["excluded_seeds"] else "")
        for label, about in results["runs"].items()
    }
    return report.render(
        title=f"{len(runs)} runs of {results['study']}",
        question="Do these runs come to the same verdicts, and in which settings do they differ?",
        finding=finding(results),
        setting=runs,
        notes=[NOTE],
        claims={"Claims about all runs together": results["across"]} if results["across"] else {},
        figures=run.pictures,
        numbers=tables(results),
        reproduce=reproduction(run.facts, run.settings_text),
    )
