"""The page of a run of layer tying, from the body of results.json."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.reporting import page as report
from tiejax.reporting.finding import finding
from tiejax.reporting.sections import excluded, performance, reproduction
from tiejax.reporting.words import counted
from tiejax.studies.layer_tying.figures import MIB
from tiejax.studies.layer_tying.plots import FEWEST_SEEDS, final_maps
from tiejax.studies.text_mlm.page import written

BYTES = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "stored_bytes": "together",
    "peak_bytes": "peak",
}


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _mean(values: Sequence[float | None], form: str) -> str:
    return _shown(float(np.mean(np.array(values, dtype=float))), form)


def _perplexity(value: float | None) -> str:
    return _shown(value, ",.2f" if value is not None and value < 100 else ",.1f")


def _mib(size: float) -> str:
    return _shown(size / MIB, ",.1f" if size >= 10 * MIB else ",.2f")


def _over_seeds(of: Mapping[str, Any]) -> str:
    if of["interval"] is None:
        return _perplexity(of["mean"])
    return f"{_perplexity(of['mean'])} [{', '.join(map(_perplexity, of['interval']))}]"


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the report: methods, every seed, bytes by number of distinct layers, final maps."""
    if not results["seeds"]:
        return {}
    rows, seeds = results["methods"], results["seeds"]
    perplexities = {
        "train_perplexity": "training",
        "test_perplexity": "test",
        "test_perplexity_per_word": "test, per word",
        "validation_perplexity": "validation",
        "equal_time_perplexity": "at equal time",
    }
    layers = [
        [
            row["method"],
            _mean(row["distinct"], ".1f"),
            _mean(row["distinct_in_training"], ".1f"),
            _mean(row["replicated"], ".0%"),
            _mean(row["parameters"], ",.0f"),
            _shown(row["seconds_per_step"]["mean"], ".4g"),
        ]
        for row in rows
    ]
    memory = [
        [
            row["method"],
            *(_mib(float(np.mean(row["bytes"][name]["seeds"]))) for name in BYTES),
            *(_mib(max(row["bytes"][name]["largest"])) for name in ("stored_bytes", "peak_bytes")),
        ]
        for row in rows
    ]
    by_seed = [
        [
            row["method"],
            str(seed),
            *(_perplexity(row[name]["seeds"][place]) for name in perplexities),
            f"{row['equal_time_step'][place]:,}",
            f"{row['best_step'][place]:,}",
            str(row["distinct"][place]),
            _shown(row["distinct_in_training"][place], ".1f"),
        ]
        for row in rows
        for place, seed in enumerate(seeds)
    ]
    parts = [name for name in BYTES if name != "stored_bytes"]
    sizes = sorted((int(number), entry) for number, entry in results["sizes"].items())
    final = final_maps(rows, seeds)
    return {
        "Methods: perplexity, mean [95 % interval] over seeds": (
            ["method", *perplexities.values()],
            [[row["method"], *(_over_seeds(row[name]) for name in perplexities)] for row in rows],
        ),
        "Methods: layers at the best step and in training, time": (
            ["method", "distinct layers", "in training", "copies", "parameters", "seconds a step"],
            layers,
        ),
        "Methods: memory (MiB), means over training, then the most": (
            ["method", *BYTES.values(), "together, most", "peak, most"],
            memory,
        ),
        "Every seed": (
            ["method", "seed", *perplexities.values(), "its step", "best step", "distinct", "in training"],
            by_seed,
        ),
        "Sizes: what training holds (MiB), by number of distinct layers": (
            ["distinct layers", "number of parameters", *(BYTES[name] for name in parts), "a change of ties"],
            [
                [str(n), f"{entry['parameters']:,}", *(_mib(entry[name]) for name in (*parts, "move_bytes"))]
                for n, entry in sizes
            ],
        ),
        "Final maps: of each layer, the layer whose weights it uses": (
            ["layer", *map(str, range(len(final[0][1])))],
            [[label, *map(str, owner)] for label, owner in final],
        ),
    }


def _data_words(data: Mapping[str, Any]) -> str:
    splits = [f"{part['tokens']:,} ({part['words']:,} words) for {name}" for name, part in data["splits"].items()]
    return f"tokens: {', '.join(splits)}; fingerprint {data['fingerprint'][:16]}"


def _notes(results: Mapping[str, Any]) -> list[str]:
    names = [row["method"] for row in results["methods"]]
    notes = excluded(results)
    if results["seeds"] and len(results["seeds"]) < FEWEST_SEEDS:
        seeds = counted(len(results["seeds"]), "seed")
        notes.append(f"{seeds}: below {FEWEST_SEEDS} no claim is decided; the estimates are what there is.")
    if "random-map" in names and "agent" in names:
        notes.append("A random map has as many distinct layers as the agent of the same seed at its best step.")
    return notes


def page(
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    settings_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run. settings: resolved; facts: environment.json; drawn: captions and PNG files."""
    shape = f"{settings['layers']} layers of width {settings['width']}"
    more = "".join(f"; {written({name: value})}" for name, value in results["model"].items() if name not in settings)
    budgets = [f"{_shown(budget, ',.0f')} s" for budget in results["equal_time_s"]]
    setting = {
        "corpus": ", ".join(map(str, settings["corpus"])) or "the prose that CPython carries",
        "data": _data_words(results["data"]),
        "tokenizer": f"{settings['tokenizer'] or 'byte-level BPE trained on the corpus'}, "
        f"vocabulary {results['data']['vocabulary']:,}",
        "model": f"{settings['architecture']}, {shape}, {settings['heads']} heads, context {settings['context']:,}, dropout "
        f"{settings['dropout']:g}, {settings['objective']}{more}",
        "training": f"{results['steps']:,} steps of {settings['batch_size']} blocks, learning rate {settings['learning_rate']:g}, "
        f"weight decay {settings['weight_decay']:g}; storage {settings['storage']}",
        "ties": f"{settings['ties']}, gradient {settings['gradient']}, moments {settings['moments']}, start {settings['start']}",
        "agent": f"{settings['layers'] - 1} actions an episode, k = {settings['k']} batches an action, reward {settings['reward']}, "
        f"epsilon at least {settings['epsilon_floor']:g}",
        "departures": "the paper has k = 15, epsilon at least .1, reward negative-ppl; its published code k = 4, epsilon at "
        "least .01, ties published, gradient owner, start frozen-random, reward clipped-ppl, and the best step chosen on the "
        "test split; ours are told above",
        "seeds": f"{len(results['seeds'])}; all methods of a seed see the same batches",
        "equal steps": "the best step of each run is chosen on validation blocks; losses there are of the whole splits",
        "equal time": "loss on validation blocks when the fastest method of the seed had done all its steps"
        + (f" ({', '.join(budgets)})" if budgets else "")
        + ", interpolated in time between validations; there a step counts for the median of all steps of its method, over all "
        "seeds, with as many distinct layers",
        "time of a step": "with what an agent does (a random one does without the reward's batch), without compilation and "
        "validation, while about as many models train at once as there are devices. What else the machine does at the time is "
        "not controlled: bench.py layers measures methods in turns",
        "claims": "those marked so are reported by the paper, the others ours",
        "source": "T. David Hay and L. Wolf, Dynamic Layer Tying for Parameter-Efficient Transformers, ICLR 2024 "
        "(arXiv:2401.12819)",
        **performance(results["timing"], facts),
    }
    return report.render(
        title=f"Dynamic layer tying: {settings['architecture']}, {shape}",
        question="While a transformer trains, an agent decides of one layer after the other whether it has weights of its own "
        "or copies an earlier one. Does the model end as well as an untied one, in how much less memory, and does the agent do "
        "better than chance or a fixed map?",
        finding=finding(results["claims"], ("perplexity/agent", "memory/mean", "learns/random-agent")),
        setting=setting,
        notes=_notes(results),
        claims={
            "Claims": [
                {**row, "statement": f"{row['statement']} Reported by the paper." if row["reported"] else row["statement"]}
                for row in results["claims"]
            ]
        },
        figures=drawn,
        numbers=tables(results),
        reproduce=reproduction(facts, settings_text),
    )
