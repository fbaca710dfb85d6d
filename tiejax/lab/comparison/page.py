"""The HTML report of a comparison of one's own model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.comparison.claims import MAIN, OWN
from tiejax.lab.comparison.data import failure
from tiejax.lab.reporting.finding import (
    agrees,
    estimate_words,
    is_equivalent,
    later_within,
    later_words,
    not_decided,
    seen_from,
    tally,
    with_unit,
)
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.sections import edge_notes, excluded_notes, few_seeds_notes, rates_numbers
from tiejax.lab.reporting.words import counted, formatted, in_brackets, number
from tiejax.lab.settings.command_line import BadInput
from tiejax.statistics.power import fewest_seeds

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
Section = Callable[[Mapping[str, Any]], Mapping[str, Table]]  # results.json -> heading -> (columns, rows)
HEADINGS = {MAIN: "Claims: differences of final losses, one family", OWN: "Claims of the script, a family of their own"}
LIMITS = (
    "One model, one data set and one number of steps: nothing is said of larger models, longer runs or other data. Seeds "
    "differ in initial values and in the order of the examples, not in the data."
)


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answer, then the counts of verdicts of each family."""
    counts = [f"{HEADINGS[name].split(':')[0]} ({name}): {tally(rows_of(results, name))}" for name in results["families"]]
    return [words for words in (failed_gate(results), sentence(results), *counts) if words]


def failed_gate(results: Mapping[str, Any]) -> str:
    """Return why no claim is tested, or ""."""
    return str(results["gate"]["failed"]) if "gate" in results else ""


def answer(results: Mapping[str, Any]) -> str:
    """Return the answer by itself, after what its reader has to know: why nothing is tested, and rates at an edge."""
    return " ".join(filter(None, [failed_gate(results), *edge_notes(results), sentence(results)]))


def sentence(results: Mapping[str, Any]) -> str:
    """Return the answer: which arms end lower than which, decided ones first."""
    rows = rows_of(results, MAIN) if MAIN in results["families"] else []
    rows = sorted(rows, key=lambda row: row["verdict"] == "undecided")
    return " ".join(
        [
            f"For {results['name']}, after {counted(results['steps'], 'step')}:",
            *(in_words(row, *results["pairs"][row["id"]]) for row in rows),
        ]
    )


def in_words(row: Mapping[str, Any], first: str, second: str) -> str:
    """Return a sentence about the difference of two arms."""
    seeds = counted(row["n"], "seed")
    if row["estimate"] is None or (row["verdict"] == "undecided" and not is_equivalent(row)):
        return f"Whether {first} models end lower than {second} ones is {not_decided(row)}."
    if is_equivalent(row):
        apart = f"end less than {with_unit(row['margin'], row)} apart{later_within(row)}"
        between = f"{first} - {second} {estimate_words(row, unit=False)}"
        return f"{first[0].upper()}{first[1:]} and {second} models {apart} ({between}, {seeds})."
    interval = in_brackets(seen_from(row["estimate"], row["interval"]))
    side = "lower" if row["estimate"] < 0 else "higher"
    found = f"{number(abs(row['estimate']))} {row['unit']} {side} than {second} ones{interval}"
    later = later_words(row, row["look"], agrees(row))
    tested = ", not tested" if row["verdict"] == "exploratory" else f", decided{later}" if later else ""
    return f"{first[0].upper()}{first[1:]} models end {found} ({seeds}{tested})."


def rows_of(results: Mapping[str, Any], family: str) -> list[Mapping[str, Any]]:
    """Return the rows of a family of claims."""
    by_id = {row["id"]: row for row in results["claims"]}
    return [by_id[name] for name in results["families"][family]]


def tables(results: Mapping[str, Any], sections: Sequence[Section] = ()) -> dict[str, Table]:
    """Return the tables: final losses and costs, learning rates that were tried, those of the script."""
    rows = []
    for arm, row in results["arms"].items():
        losses = np.array(row["loss"], float)
        spread = f"{losses.std(ddof=1):.4f}" if len(losses) > 1 else "-"
        cost = results["costs"][arm]
        costs = [formatted(cost[name], form) for name, form in (("parameters", ","), ("bytes", ","), ("flops", ".3g"))]
        rows.append([arm, f"{losses.mean():.4f}", spread, str(len(losses)), *costs])
    if "gate" in results:
        rows.append(["gate", f"{results['gate']['bigram']:.4f}", *["-"] * 5])
    columns = ["arm", "final loss", "standard deviation", "seeds", "parameters", "stored bytes", "FLOPs a step"]
    found: dict[str, Table] = {
        f"Numbers: final held-out loss ({results['unit']}), and what the arm costs at the end": (columns, rows)
    }
    found |= rates_numbers(results)
    for section in sections:
        try:
            found |= {str(heading): (columns, [*map(list, rows)]) for heading, (columns, rows) in section(results).items()}
        except Exception as error:
            name = getattr(section, "__name__", "a function")
            raise BadInput(f"sections: {name} failed, or returned no tables, with {failure(error)}") from None
    return found


def rates_words(results: Mapping[str, Any]) -> str:
    """Return the learning rates of each class of arms, and the other arms that have them."""
    found = [f"{kind}: {' and '.join(map(number, rates))}" for kind, rates in results["rates"].items()]
    for kind in results["rates"]:
        if others := [arm for arm, other in results["rates_of"].items() if other == kind != arm]:
            found.append(f"those of {kind} models also for {', '.join(others)}")
    return "; ".join(found)


def page(run: RunOnPage, sections: Sequence[Section] = ()) -> str:
    """Return the HTML report of a run."""
    results = run.results
    notes = [*edge_notes(results), *excluded_notes(results), *few_seeds_notes(results, fewest_seeds), LIMITS]
    setting = {
        "arms": ", ".join(results["arms"]) + "; an arm that changes continues the model of its seed that does not, bit for bit",
        "ties": "; ".join(results["ties"]),
        "training": f"{counted(results['steps'], 'step')} of {counted(results['batch_size'], 'example')}"
        + (f", {results['epochs']:.2f} epochs of {results['examples']:,} examples" if results["epochs"] is not None else ""),
        "learning rates": rates_words(results),
        "final loss": f"{results['unit']}, the mean over all {results['held_out']:,} held-out examples at the last step",
        "seeds": f"{len(results['seeds'])}; all arms of a seed see the same batches",
    }
    return render(
        run,
        title=f"Tied or untied: {results['name']}",
        question=f"Should {results['name']} be tied, untied, or tied for a part of its training?",
        finding=finding(results),
        setting=setting,
        notes=notes,
        claims={HEADINGS[name]: rows_of(results, name) for name in results["families"]},
        numbers=tables(results, sections),
    )
