"""What the pages of several studies share: tables of final values, settings in words, how to reproduce."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting.words import duration, share


def arrays_in_words(entry: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of a nested mapping, each by the words on the way to it: `{"loss": {"test": x}}` as `loss, test`.

    None is left out; a null among numbers, as in an empty split, becomes NaN.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, value in entry.items():
        words = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            arrays |= arrays_in_words(value, f"{words}, ")
        elif value is not None:
            arrays[words] = np.asarray(value, dtype=float)
    return arrays


def medians_table(untied: Mapping[str, np.ndarray], tied: Mapping[str, np.ndarray]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: medians and quartiles over seeds of both arms and their difference, `[seed]` by name."""
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
    """Write how long a run took, for the page's setting; nothing if this process trained nothing."""
    if not timing["train_s"]:
        return {}
    since = " since the run was last resumed" if facts.get("resumed") else ""
    devices = f"{len(facts['devices'])} x {facts['devices'][0]}"
    return {
        "time": f"{duration(timing['train_s'])} of training{since}, {timing['compile_s']:.1f} s of compilation, "
        f"{timing['model_steps_per_s']:,.0f} model-steps per second, on {devices}"
    }


def model_words(results: Mapping[str, Any]) -> str:
    """Write what the model of a run is, for the page's setting."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["model"].items())


def training_words(results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Write how a run was trained, for the page's setting."""
    weights = settings.get("gradient_weights")
    weighed = f", gradient of the uses of the tied table times {weights[0]:g} and {weights[1]:g}" if weights else ""
    return (
        f"{results['steps']:,} steps of {settings['optimizer']}, {settings['schedule']} rate from "
        f"{settings['learning_rate']:g}, weight decay {settings['weight_decay']:g}{weighed}"
    )


def reproduction(facts: Mapping[str, Any], settings_text: str) -> dict[str, str]:
    """Write how to repeat a run: its command, its settings, what it was made with."""
    packages = [f"{name} {version}" for name, version in facts["versions"].items()]
    return {
        "The command of this run:": facts["command"],
        "All its settings, for --config:": settings_text,
        "With:": "\n".join([*packages, f"python {facts['python']}", *facts["devices"], f"commit {facts['git_commit']}"]),
    }


def excluded_notes(results: Mapping[str, Any]) -> list[str]:
    """Return the note on members that became non-finite, if there are any."""
    members = ", ".join(f"{row['arm']} seed {row['seed']} (at step {row['step']})" for row in results["non_finite"])
    return [f"Left out with their partners because they became non-finite: {members}."] if results["excluded_seeds"] else []


def marked_as_reported(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of claims whose statements say which of them the paper reports: those that have `reported`."""
    return [
        {**row, "statement": f"{row['statement']} Reported by the paper." if row["reported"] else row["statement"]}
        for row in claims
    ]
