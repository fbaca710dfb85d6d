"""The page of runs side by side and its figure, the effect sizes claim by claim, made from its results.json."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.finding import about, opening
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.words import Table, counted, interval_words, number
from tiejax.system.visible import visible

DECIDED = frozenset({"supported", "contradicted"})
MARKERS = ("o", "s", "^", "D", "v", "P")
CAPTION = (
    "Mean of the paired differences over their standard deviation, for every registered claim in every run. Filled: the run "
    "decides the claim, after its own adjustment; open: it does not."
)
NOTE = (
    "A claim is decided if its verdict is supported or contradicted. Verdicts are those of the runs, each adjusted for the "
    "number of claims in that run. If one run decides a claim and another does not, that is not a tested difference between "
    "the two: compare their estimates and intervals."
)


def verdicts(claim: Mapping[str, Any]) -> list[str]:
    """Return the verdict of each run that makes this claim."""
    return [row["verdict"] for row in claim["rows"] if row is not None]


def is_tested(claim: Mapping[str, Any]) -> bool:
    """Return whether a run tests this claim, rather than only estimating it."""
    return set(verdicts(claim)) != {"exploratory"}


def at_odds(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of claims that one run supports and another contradicts."""
    return [claim["id"] for claim in claims if set(verdicts(claim)) >= DECIDED]


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return how many claims are decided and agree, and the settings in which the runs differ."""
    runs, claims = len(results["runs"]), [claim for claim in results["claims"] if is_tested(claim)]
    odds = at_odds(claims)
    shared = [verdicts(claim) for claim in claims if len(verdicts(claim)) == runs]
    decided = [set(found) for found in shared if set(found) <= DECIDED]
    alike = sum(len(found) == 1 for found in decided)
    words = [f"Decided in every run: {len(decided)} of {counted(len(shared), 'claim')}, {alike} of them alike."]
    if odds:
        words.append(f"Supported by one run and contradicted by another: {', '.join(odds)}.")
    if partly := sum(bool(set(found) & DECIDED) and not set(found) <= DECIDED for found in shared):
        words.append(f"Decided in some runs and undecided in others: {counted(partly, 'claim')}.")
    if alone := len(claims) - len(shared):
        words.append(f"Not made by all runs: {counted(alone, 'claim')}.")
    differ = ", ".join(results["settings"])
    across = [opening(row) for row in results["across"]]
    return [*across, " ".join(words), f"The runs differ in {differ}." if differ else "The runs have the same settings."]


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
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
    described = next(row for row in claim["rows"] if row is not None)
    return [f"{claim['id']}: {about(described)}", *map(_cell, claim["rows"])]


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    interval = f" ({interval_words(row['interval'])})" if row["interval"] else ""
    adjusted = f", adjusted {interval_words(row['interval_adjusted'])}" if row["interval_adjusted"] else ""
    tested = f", p {number(row['p_adjusted'])}" if row["p_adjusted"] is not None else ""
    verdict = "" if row["verdict"] == "exploratory" else f", {row['verdict']}"
    return f"{number(row['estimate'])}{interval}{adjusted}{tested}, n {row['n']}{verdict}"


def page(run: RunOnPage) -> str:
    """Return the page as HTML."""
    results = run.results
    runs = {
        label: f"{about['folder']}, {counted(about['seeds'], 'seed')}"
        + (f", excluded: {', '.join(map(str, about['excluded_seeds']))}" if about["excluded_seeds"] else "")
        for label, about in results["runs"].items()
    }
    return render(
        run,
        title=f"{len(runs)} runs of {results['study']}",
        question="Do these runs come to the same verdicts, and in which settings do they differ?",
        finding=finding(results),
        setting=runs,
        notes=[NOTE],
        claims={"Claims about all runs together": results["across"]} if results["across"] else {},
        numbers=tables(results),
    )


def plot_all(results: Mapping[str, Any]) -> list[figures.Plot]:
    """Plot the effect size of every tested claim in every run; no figure if there is none."""
    claims = [
        claim for claim in results["claims"] if is_tested(claim) and any(_effect(row) is not None for row in claim["rows"])
    ]
    if not claims:
        return []
    figure, axes = figures.new_figure(1, 1, 7.0, 1.2 + 0.32 * len(claims))
    panel = axes[0, 0]
    labels = list(results["runs"])
    for place, label in enumerate(labels):
        colour, marker = figures.SERIES[place % len(figures.SERIES)], MARKERS[place // len(figures.SERIES) % len(MARKERS)]
        offset = (place - (len(labels) - 1) / 2) * 0.6 / len(labels)
        for decided in (True, False):
            points = [
                (effect, number + offset)
                for number, claim in enumerate(claims)
                if (effect := _effect(claim["rows"][place])) is not None
                and (claim["rows"][place]["verdict"] in DECIDED) == decided
            ]
            x, y = zip(*points, strict=True) if points else ((), ())
            face = colour if decided else "white"
            # Without the space, the legend would leave out a name that begins with "_".
            name = f" {visible(label)}" if decided else None
            panel.plot(x, y, marker, color=colour, markerfacecolor=face, label=name, markersize=5)
    panel.axvline(0, color="black", linewidth=0.8)
    ids = [claim["id"] for claim in claims]
    panel.set_yticks(range(len(claims)), [_label(claim, ids.count(claim["id"]) > 1) for claim in claims])
    panel.set_ylim(len(claims) - 0.5, -0.5)
    panel.set_xlabel("standardised mean of the paired differences")
    figures.legend_below(figure, panel)
    return [figures.Plot("effects", CAPTION, figure)]


def _label(claim: Mapping[str, Any], repeated: bool) -> str:
    """Return the id of a claim, with its unit if other rows have the same id."""
    unit = next(row["unit"] for row in claim["rows"] if row is not None)
    return f"{claim['id']} ({unit})" if repeated else str(claim["id"])


def _effect(row: Mapping[str, Any] | None) -> float | None:
    return None if row is None else row["effect"]
