"""Page sections shared by several studies: final values, settings in words, reproduction, looks and parts of a run."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting.words import Table, counted, duration, formatted, share

PAPER = (
    "F. Bertolotti and W. Cazzola, By Tying Embeddings You Are Assuming the Distributional Hypothesis, ICML 2024, "
    "PMLR 235:3584-3610"
)
LOOKS = "Numbers: the look at which each registered claim was decided"


def arrays_in_words(entry: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Flatten a nested mapping to arrays named by their path in words: `{"loss": {"test": x}}` gives `loss, test`.

    Entries that are None are omitted; None among numbers, as for an empty split, becomes NaN.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, value in entry.items():
        words = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            arrays |= arrays_in_words(value, f"{words}, ")
        elif value is not None:
            arrays[words] = np.asarray(value, dtype=float)
    return arrays


def medians_table(untied: Mapping[str, np.ndarray], tied: Mapping[str, np.ndarray]) -> Table:
    """Return columns and rows: medians and quartiles over seeds of both arms and of their difference.

    untied, tied: `[seed]` by name.
    """
    rows = []
    for name in untied:
        row = [name]
        for values in (untied[name], tied[name], tied[name] - untied[name]):
            low, middle, high = (decimal(name, value) for value in np.quantile(values, [0.25, 0.5, 0.75]))
            row.append(f"{middle}  [{low}, {high}]" if middle != "-" else middle)
        rows.append(row)
    return ["", "untied", "tied", "tied - untied"], rows


def decimal(name: str, value: float) -> str:
    """Format the value of a named quantity with four decimals, an accuracy as a percentage with two; NaN as a dash."""
    if math.isnan(value):
        return "-"
    return share(value, 2) if "accuracy" in name else f"{value:.4f}"


def timing_words(timing: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the time of a run for the page's setting; empty if this process did not train."""
    if not timing["train_s"]:
        return {}
    since = " since the run was last resumed" if facts.get("resumed") else ""
    devices = f"{len(facts['devices'])} x {facts['devices'][0]}"
    return {
        "time": f"{duration(timing['train_s'])} of training{since}, {timing['compile_s']:.1f} s of compilation, "
        f"{timing['model_steps_per_s']:,.0f} model-steps per second, on {devices}"
    }


def corpus_words(settings: Mapping[str, Any]) -> str:
    """Name the training text of a run, for the page's setting."""
    return ", ".join(map(str, settings["corpus"] or settings.get("languages") or ["the prose that comes with CPython"]))


def model_words(results: Mapping[str, Any]) -> str:
    """Describe the model of a run, for the page's setting."""
    answers = {True: "yes", False: "no"}
    return ", ".join(
        f"{name.replace('_', ' ')} {answers[value] if isinstance(value, bool) else value}"
        for name, value in results["model"].items()
    )


def training_words(results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Describe the training of a run, for the page's setting."""
    weights = settings.get("gradient_weights")
    weighted = f", gradients of the tied table's two uses weighted by {weights[0]:g} and {weights[1]:g}" if weights else ""
    return (
        f"{results['steps']:,} steps of {settings['optimizer']}, {settings['schedule']} learning rate from "
        f"{settings['learning_rate']:g}, weight decay {settings['weight_decay']:g}{weighted}"
    )


def reproduction(facts: Mapping[str, Any], settings_text: str) -> dict[str, str]:
    """Return the command, settings and environment of a run, for the page's section on reproduction."""
    packages = [f"{name} {version}" for name, version in facts["versions"].items()]
    return {
        "Command of this run:": facts["command"],
        "Resolved settings, as a file for --config:": settings_text,
        "Environment:": "\n".join([*packages, f"python {facts['python']}", *facts["devices"], f"commit {facts['git_commit']}"]),
    }


def diverged_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """List the members that became non-finite; rows: `non_finite` of results.json."""
    where = [f" in {row['variant']}" if "variant" in row else "" for row in rows]
    return ", ".join(
        f"{row['arm']} seed {row['seed']}{of} (at step {row['step']})" for row, of in zip(rows, where, strict=True)
    )


def excluded_notes(results: Mapping[str, Any]) -> list[str]:
    """Return a note on the members that became non-finite, if there are any, for pages whose claims are about all seeds."""
    if not results["excluded_seeds"]:
        return []
    return [
        f"Became non-finite: {diverged_words(results['non_finite'])}. Claims count these models as the worst; other values are "
        "those of the remaining seeds."
    ]


def few_seeds_notes(results: Mapping[str, Any], fewest_seeds: Callable[[int], int]) -> list[str]:
    """Return a note if a run has too few seeds to decide any difference among its claims.

    fewest_seeds: number of claims -> the number of seeds that they need (`statistics.power.fewest_seeds`).
    """
    tested, seeds = sum(row["family"] == "registered" for row in results["claims"]), len(results["seeds"])
    if not seeds or not tested or seeds >= (needed := fewest_seeds(tested)):
        return []
    return [
        f"{counted(seeds, 'seed')}: no difference can be decided, since {counted(tested, 'claim')} tested together would take "
        f"at least {needed} seeds; only estimates are given."
    ]


def marked_as_reported(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the claims with "Reported by the paper." appended to the statements of those that have `reported` set."""
    return [
        {**row, "statement": f"{row['statement']} Reported by the paper." if row["reported"] else row["statement"]}
        for row in claims
    ]


def edge_notes(results: Mapping[str, Any]) -> list[str]:
    """Return a note on the models whose best learning rate is at an edge of those tried, if there are any."""
    edges = " and ".join(kind for kind, tried in results["tuning"].items() if tried["at_edge"])
    return [f"The best learning rate of {edges} models is the last that was tried; another may be better."] if edges else []


def rates_numbers(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the table of the learning rates that were tried, by its title; none for a run that tried none."""
    seeds = ", ".join(map(str, results["tuning_seeds"]))
    return {f"Numbers: learning rates, on seeds {seeds} only": rates_table(results["tuning"])} if results["tuning"] else {}


def rates_table(tuning: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with a row for each learning rate that was tried; tuning: as in results.json, by kind of models.

    With several factors of the tables' rate, also the factor. Pairs that the first seed did not choose have its loss alone. The
    loss of a model that diverged is None in results.json.
    """
    rows = []
    for kind, tried in tuning.items():
        factors, seeds = tried.get("factors", [None] * len(tried["rates"])), max(map(len, tried["losses"]))
        for rate, factor, losses in zip(tried["rates"], factors, tried["losses"], strict=True):
            chosen = " (chosen)" if (rate, factor) == (tried["best"], tried.get("best_factor")) else ""
            numbers = [np.inf if loss is None else loss for loss in losses]
            mean = f"{np.mean(numbers):.4f}" if len(losses) == seeds else "-"
            rows.append([kind, f"{rate:g}{chosen}", formatted(factor, "g"), mean, ", ".join(f"{loss:.4f}" for loss in numbers)])
    if len({row[2] for row in rows}) > 1:
        return ["models", "rate", "factor of the tables'", "mean loss", "losses"], rows
    return ["models", "rate", "mean loss", "losses"], [[*row[:2], *row[3:]] for row in rows]


def parts_words(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry of a page's description on looks or on appended seeds; none for a run of one part."""
    if looks := results.get("looks"):
        return {"looks": looks_words(looks["planned"], looks["done"], looks.get("appended", False))}
    if parts := results.get("seeds_by_part"):
        appended = ", then ".join(f"{seeds:,}" for seeds in parts[1:])
        return {
            "appended": f"{appended} seeds, to a run of {parts[0]:,}, or by joining runs. The tests take all seeds as planned "
            "from the start"
        }
    return {}


def looks_words(planned: Sequence[int], done: Sequence[int], appended: bool = False) -> str:
    """Return in words at which numbers of seeds claims were planned to be tested, and were."""
    share = f", each with {1 / len(planned):.3g} of .05" if len(planned) > 1 else ""
    if appended:
        before = "seeds were appended to a finished run, or runs were joined, whose claims had been tested"
        return f"at {_numbers(done)} seeds{share}: {before}"
    return f"planned at {_numbers(planned)} seeds{share}; done at {_numbers(done)}"


def looks_table(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the table of the look that decided each registered claim; none for a run without looks.

    A verdict stays once it is reached; estimates are those of all seeds.
    """
    if not results.get("looks"):
        return {}
    rows = []
    for claim in results["claims"]:
        if claim["family"] == "registered":
            decided = claim["verdict"] != "undecided"
            rows.append([claim["id"], f"{claim['look']:,} seeds" if decided else "not decided", claim["verdict"]])
    return {LOOKS: (["claim", "decided at", "verdict"], rows)}


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)
