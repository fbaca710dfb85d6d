"""The tables of a layer-tying report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting.sections import rates_table
from tiejax.lab.reporting.words import share
from tiejax.lab.studies.layer_tying.figures import MIB, final_maps
from tiejax.system.visible import visible

PERPLEXITIES = {
    "train_perplexity": "training",
    "test_perplexity": "test",
    "test_perplexity_per_word": "test, per word",
    "validation_perplexity": "validation",
    "equal_time_perplexity": "at equal time",
}
BYTES = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "stored_bytes": "together",
    "peak_bytes": "peak",
}

LAST_PART = 4  # the last quarter of the episodes
AGENTS_TITLE = (
    "Agents: means over the last quarter of the episodes (error / |reward|: 100 % for untrained values Q, 0 for values that "
    "solve their equation)"
)

Row = Mapping[str, Any]  # a method, as in `analysis.summarise`
Table = tuple[list[str], list[list[str]]]  # columns and rows


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report by title: methods, agents, learning rates, seeds, bytes by distinct layers, maps."""
    if not results["seeds"]:
        return {}
    rows, seeds = results["methods"], results["seeds"]
    tuned = ", ".join(map(str, results.get("tuning_seeds", [])))
    return {
        "Methods: perplexity, mean [95 % interval] over seeds": perplexities(rows),
        "Methods: layers at the best step and in training, time": layers(rows),
        "Methods: memory (MiB), means over training, then maxima": memory(rows),
        **({AGENTS_TITLE: agents(results["agents"])} if results["agents"] else {}),
        **({f"Learning rates, chosen on seeds {tuned} only": rates_table(results["tuning"])} if tuned else {}),
        "Every seed": by_seed(rows, seeds),
        "Sizes: memory of training (MiB), by number of distinct layers": sizes(results["sizes"]),
        "Final maps: for each layer, the layer whose weights it uses": maps(rows, seeds),
    }


def published_tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report by title, and the continuations of each prompt, as code in Markdown."""

    def code(text: str) -> str:
        return f"`` {text} ``"

    found = continuations(results["generated"]) if "generated" in results else []
    return tables(results) | {
        f"Continuations of prompt {number}": (
            ["method", "share of distinct tokens", f"continuation of {code(prompt)}"],
            [[method, distinct, code(text)] for method, distinct, text in rows],
        )
        for number, (prompt, rows) in enumerate(found, 1)
    }


def perplexities(rows: Sequence[Row]) -> Table:
    """Return the perplexities of every method."""
    return ["method", *PERPLEXITIES.values()], [
        [row["method"], *(_over_seeds(row[name]) for name in PERPLEXITIES)] for row in rows
    ]


def layers(rows: Sequence[Row]) -> Table:
    """Return layers and time of every method, as means over seeds."""
    return ["method", "distinct layers", "in training", "copies", "parameters", "seconds per step"], [
        [
            row["method"],
            _mean(row["distinct"], ".1f"),
            _mean(row["distinct_in_training"], ".1f"),
            _mean(row["replicated"], ".0%"),
            _mean(row["parameters"], ",.0f"),
            shown(row["seconds_per_step"]["mean"], ".4g"),
        ]
        for row in rows
    ]


def memory(rows: Sequence[Row]) -> Table:
    """Return the bytes of every method."""
    return ["method", *BYTES.values(), "together, maximum", "peak, maximum"], [
        [
            row["method"],
            *(_mib(float(np.mean(row["bytes"][name]["seeds"]))) for name in BYTES),
            *(_mib(max(row["bytes"][name]["largest"])) for name in ("stored_bytes", "peak_bytes")),
        ]
        for row in rows
    ]


def agents(by_name: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the distinct layers, reward and error of Q of every agent.

    With one value Q of all states and actions, the error is |reward| - .01 |Q|: all of |reward| for untrained values, and 0 for
    those that solve the equation of a constant reward.
    """
    rows = []
    for name, agent in by_name.items():
        last = slice(-max(1, len(agent["episode"]) // LAST_PART), None)
        distinct, reward, squared = (np.array(agent[part], float)[:, last] for part in ("distinct", "reward", "q_loss"))
        error = np.sqrt(squared)
        rows.append([
            name, str(len(agent["episode"])), f"{distinct.mean():.1f}", shown(reward.mean(), ".3f"), shown(error.mean(), ".3f"),
            "-" if np.isnan(error).any() else share(float((error / np.abs(reward)).mean())),
        ])  # fmt: skip
    return ["agent", "episodes", "distinct layers", "reward", "error of Q", "error / |reward|"], rows


def by_seed(rows: Sequence[Row], seeds: Sequence[int]) -> Table:
    """Return perplexities, steps and layers of every model."""
    return ["method", "seed", *PERPLEXITIES.values(), "its step", "best step", "distinct", "in training"], [
        [
            row["method"],
            str(seed),
            *(perplexity(row[name]["seeds"][index]) for name in PERPLEXITIES),
            f"{row['equal_time_step'][index]:,}",
            f"{row['best_step'][index]:,}",
            str(row["distinct"][index]),
            shown(row["distinct_in_training"][index], ".1f"),
        ]
        for row in rows
        for index, seed in enumerate(seeds)
    ]


def sizes(by_method: Mapping[str, Mapping[Any, Mapping[str, int]]]) -> Table:
    """Return the parameters and bytes of training by number of distinct layers; methods of the same sizes share a row."""
    parts = [name for name in BYTES if name != "stored_bytes"]
    methods: dict[tuple[int, ...], list[str]] = {}
    for method, by_number in by_method.items():
        for number, size in by_number.items():
            row = int(number), *(size[name] for name in ("parameters", *parts, "move_bytes"))
            methods.setdefault(row, []).append(method)
    return ["distinct layers", "number of parameters", *(BYTES[name] for name in parts), "a change of ties", "methods"], [
        [str(number), f"{parameters:,}", *map(_mib, stored), ", ".join(names)]
        for (number, parameters, *stored), names in sorted(methods.items())
    ]


def maps(rows: Sequence[Row], seeds: Sequence[int]) -> Table:
    """Return the final owner map of every method."""
    final = final_maps(rows, seeds)
    return ["layer", *map(str, range(len(final[0][1])))], [[label, *map(str, owner)] for label, owner in final]


def continuations(generated: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Return each prompt with the rows of its continuations: method, share of distinct tokens, text with line ends as `\\n`."""
    writers = {"the text itself": generated["text"], **generated["methods"]}

    def row(name: str, found: Mapping[str, Any], prompt: int) -> list[str]:
        if "problem" in found:
            return [name, "-", f"none: {found['problem']}"]
        return [name, share(found["distinct"]), visible(found["continuations"][prompt])]

    return [
        (visible(text), [row(name, found, prompt) for name, found in writers.items()])
        for prompt, text in enumerate(generated["prompts"])
    ]


def shown(value: int | float | None, form: str) -> str:
    """Format a number; non-finite values and None become a dash."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def perplexity(value: int | float | None) -> str:
    """Format a perplexity."""
    return shown(value, ",.2f" if value is not None and value < 100 else ",.1f")


def _mean(values: Sequence[int | float | None], form: str) -> str:
    return shown(float(np.mean(np.array(values, dtype=float))), form)


def _mib(size: int | float) -> str:
    return shown(size / MIB, ",.1f" if size >= 10 * MIB else ",.2f")


def _over_seeds(values: Mapping[str, Any]) -> str:
    if values["interval"] is None:
        return perplexity(values["mean"])
    return f"{perplexity(values['mean'])} [{', '.join(map(perplexity, values['interval']))}]"
