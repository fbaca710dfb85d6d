"""The page and the figure of a theory check, from results.json. They describe members; nothing is tested over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.sections import model_words
from tiejax.lab.reporting.words import Table, counted, number
from tiejax.statistics.arms import ARMS

TOGETHER = 0.05  # relative distance below which a pair counts as together, the margin of the claims about distances
OPTIMAL = 1e-3  # nats above the Bayes loss below which a member counts as optimal
QUESTION = (
    "How near are symbols of one meaning if the loss is minimised without weight decay? By a theorem, they are equal in an "
    "optimal model."
)
NOTES = (
    "Each member continues from the end of the run, in float64, with L-BFGS on the exact loss of the training split and "
    "without weight decay. The loss has no minimum, since impossible symbols need logits of -infinity: a member counts as "
    f"optimal if it ends within {OPTIMAL:g} nat of the Bayes loss, and a pair as together below a relative distance of "
    f"{TOGETHER:g}.",
    "The theorem assumes that the first linear map that reads an input embedding is injective. Reading map, for a transformer "
    "of one layer: its smallest singular value over its largest. A map with the value 0 is not injective, and then embeddings "
    "may be any distance apart at an optimum. Read: the relative distance of what the map reads of both embeddings.",
    "These are descriptions of the members, not tests over seeds. A pair that stays apart in such a model shows that a "
    f"loss within {OPTIMAL:g} nat of Bayes does not require it to come together. A pair that was together before shows nothing "
    "about the cause; --apart moves pairs apart first.",
)
SMALLEST = 1e-8  # relative distances below are drawn here
CAPTION = (
    "Relative distance of each pair of spellings in the input table while L-BFGS minimises the exact training loss without "
    "weight decay, one line per member, from the end of the run (left) on. By the theorem it is 0 at an optimum, if "
    "the reading map is injective."
)


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return a sentence per pair and arm, on the optimal members."""
    words = []
    for arm in ARMS:
        members = [member for member in results["members"][arm] if is_optimal(member, results)]
        total = len(results["members"][arm])
        if not total:
            words.append(f"No {arm} member was continued.")
            continue
        if not members:
            words.append(f"None of the {counted(total, f'{arm} member')} came within {OPTIMAL:g} nat of the Bayes loss.")
            continue
        found = [f"{counted(len(members), f'{arm} member')} of {total} came within {OPTIMAL:g} nat of the Bayes loss."]
        words.append(" ".join([*found, *(_pair(members, pair) for pair in results["pairs"])]))
    return words


def is_optimal(member: Mapping[str, Any], results: Mapping[str, Any]) -> bool:
    """Return whether a member ends near the Bayes loss."""
    return bool(member["loss"][1] - results["bayes_cross_entropy"] < OPTIMAL)


def _pair(members: Sequence[Mapping[str, Any]], pair: str) -> str:
    before, after = ends(members, f"input/{pair}/relative")
    name = f"read/{pair}/relative"
    read = (
        f" ({number(float(np.median(ends(members, name)[1])))} in what the models read)"
        if name in members[0]["measures"]
        else ""
    )
    return (
        f"The {pair} pair is together in the input table of {int((before < TOGETHER).sum())} before and of "
        f"{int((after < TOGETHER).sum())} after the minimisation; median relative distance {number(float(np.median(before)))} "
        f"before, {number(float(np.median(after)))} after{read}."
    )


def ends(members: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return the first and the last value of a measure, `[2, member]`."""
    return np.array([[member["measures"][name][place] for member in members] for place in (0, -1)])


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return a table for each arm with a row for each member."""
    return {
        f"Numbers: {arm} members, before -> after the minimisation": (
            headings(results),
            [_row(member, results) for member in rows],
        )
        for arm, rows in results["members"].items()
        if rows
    }


def headings(results: Mapping[str, Any]) -> list[str]:
    """Return the columns of the table of members."""
    return ["seed", "loss - Bayes", "|gradient|", "iterations", *_measured(results).values(), "ended by"]


def _measured(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the measures in the table of members, with their headings."""
    columns = (("input", "distance"), ("input", "relative"), ("output", "relative"))
    shown = {f"{table}/{pair}/{kind}": f"{pair}, {table}: {kind}" for pair in results["pairs"] for table, kind in columns}
    if any("reading" in member["measures"] for rows in results["members"].values() for member in rows):
        shown |= {"reading": "reading map"} | {f"read/{pair}/relative": f"{pair}, read: relative" for pair in results["pairs"]}
    return shown


def _row(member: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    bayes, found = results["bayes_cross_entropy"], member["measures"]
    return [
        str(member["seed"]),
        _change([loss - bayes for loss in member["loss"]]),
        _change(member["gradient"]),
        f"{member['iterations']:,}",
        *(_change([found[name][0], found[name][-1]]) for name in _measured(results)),
        member["reason"].split(":")[0].lower(),
    ]


def _change(values: Sequence[float]) -> str:
    return " -> ".join(map(number, values))


def page(run: RunOnPage) -> str:
    """Return the page as HTML."""
    results = run.results
    about = results["run"]
    setting = {
        "run": f"{about['folder']}: {about['variant']}, step {about['step']:,}, weight decay {about['weight_decay']:g}",
        "model": model_words(results),
        "minimisation": f"L-BFGS, at most {results['iterations']:,} iterations, float64"
        + ("" if results["apart"] is None else f", pairs first moved to a relative distance of {results['apart']:g}"),
        "Bayes": f"cross-entropy {results['bayes_cross_entropy']:.4f} nats on the training split",
    }
    return render(
        run,
        title=f"Theory check of EXor, {about['variant']}: the loss without weight decay",
        question=QUESTION,
        finding=finding(results),
        setting=setting,
        notes=NOTES,
        numbers=tables(results),
    )


def plot_all(results: Mapping[str, Any]) -> list[figures.Plot]:
    """Plot the relative input distances of all pairs along the minimisation, one panel per arm; no figure without pairs."""
    if not results["pairs"]:
        return []
    figure, axes = figures.new_figure(1, len(ARMS), 4.6 * len(ARMS), 3.2, share_y=True)
    for panel, arm in zip(axes[0], ARMS, strict=True):
        for pair, colour in zip(results["pairs"], figures.SERIES, strict=False):
            for place, member in enumerate(results["members"][arm]):
                values = np.maximum(member["measures"][f"input/{pair}/relative"], SMALLEST)
                label = f"{pair} pair" if place == 0 else None
                panel.plot(np.add(member["path"], 1), values, color=colour, alpha=0.6, linewidth=1, label=label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(arm)
        panel.set_xlabel("iteration + 1")
    axes[0, 0].set_ylabel("relative distance")
    fullest = max(range(len(ARMS)), key=lambda arm: len(results["members"][ARMS[arm]]))
    figures.legend_below(figure, axes[0, fullest])
    return [figures.Plot("paths", CAPTION, figure)]
