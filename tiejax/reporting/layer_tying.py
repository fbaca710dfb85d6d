"""The figures and the page of a run of dynamic layer tying, from plain arrays and the body of results.json.

Arrays are `[method, seed, ...]` and `[agent, seed, ...]`, by the names of metrics.npz and those that the analysis adds.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.reporting import layer_figures, report
from tiejax.reporting.console import counted
from tiejax.reporting.exor import Drawn, excluded, performance, reproduction
from tiejax.reporting.layer_figures import MIB
from tiejax.reporting.text_mlm import written

MOST_SEEDS = 6  # panels of one row
FEWEST_SEEDS = 6  # below, paired tests decide nothing
BYTES = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "stored_bytes": "together",
    "peak_bytes": "peak",
}

Metrics = Mapping[str, np.ndarray]


def tie_maps(runs: Metrics) -> Drawn:
    """Draw which layer each layer copies at the end of every episode, a row an agent, a panel a seed."""
    shown = runs["seeds"][:MOST_SEEDS]
    rows = {
        str(name): {f"seed {seed}": runs["episode_owner"][agent, place] for place, seed in enumerate(shown)}
        for agent, name in enumerate(runs["agents"])
    }
    some = f" The first {MOST_SEEDS} of {len(runs['seeds'])} seeds." if len(runs["seeds"]) > MOST_SEEDS else ""
    return Drawn(
        "map",
        "The tying map over time, at the end of each episode: the colour is the layer that a layer copies; a layer of its own "
        f"colour is independent.{some}",
        layer_figures.maps_over_time(runs["episode"], rows),
    )


def learning(runs: Metrics) -> Drawn:
    """Draw validation perplexity of every method over steps and over time."""
    names = [str(name) for name in runs["methods"]]
    return Drawn(
        "learning",
        "Validation perplexity per piece (on the blocks that select the best step) over steps and over seconds of training. "
        "Thin: one seed each; thick: mean over seeds (of nats, and of seconds); broken: fixed maps. The first steps, with "
        "perplexities far above all last ones, lie outside. A step counts for the median time of all steps of its method with "
        "as many distinct layers.",
        layer_figures.learning(
            runs["validation_step"],
            dict(zip(names, runs["validation_loss"].astype(float), strict=True)),
            dict(zip(names, runs["validation_seconds"], strict=True)),
        ),
    )


def methods(rows: Sequence[Mapping[str, Any]]) -> Drawn:
    """Draw perplexity, memory and time of every method; rows: as results.json has them."""
    panels = {
        "test perplexity per piece": {row["method"]: row["test_perplexity"]["seeds"] for row in rows},
        "parameters, gradients, optimizer (MiB)": {
            row["method"]: [value / MIB for value in row["bytes"]["stored_bytes"]["seeds"]] for row in rows
        },
        "seconds a step": {row["method"]: row["seconds_per_step"]["seeds"] for row in rows},
    }
    return Drawn(
        "methods",
        "Test perplexity at the best step, bytes of parameters, gradients and optimizer state together (mean over training), "
        "and time of a training step (median over steps). One dot a seed; bars: means.",
        layer_figures.methods(panels, from_zero=list(panels)[1:]),
    )


def agents(runs: Metrics) -> Drawn:
    """Draw what the agents see and do over episodes."""
    names = [str(name) for name in runs["agents"]]
    panels = {
        "distinct layers": dict(zip(names, runs["episode_distinct"], strict=True)),
        "reward": dict(zip(names, runs["episode_reward"], strict=True)),
        "Q loss": dict(zip(names, runs["episode_q_loss"], strict=True)),
        "epsilon": {"agent" if "agent" in names else names[0]: runs["episode_epsilon"][None]},
    }
    return Drawn(
        "agent",
        "The agents over episodes: distinct layers, reward and squared error of Q, means over the actions of an episode, and "
        "epsilon, the probability of a random action, at its end. Thin: one seed each; thick: mean over seeds.",
        layer_figures.over_episodes(runs["episode"], panels, ("Q loss",)),
    )


def final_maps(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Return (label, final map) of every method and seed, once where all seeds of a method have the same."""
    found = []
    for row in rows:
        maps = row["final_owner"]
        if all(owner == maps[0] for owner in maps):
            found.append((row["method"], maps[0]))
        else:
            found += [(f"{row['method']}, seed {seed}", owner) for seed, owner in zip(seeds, maps, strict=True)]
    return found


def maps(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Drawn:
    """Draw the final map of every method and seed."""
    return Drawn(
        "maps",
        "The map that each method ended with: of each layer, the number of the layer whose weights it uses. One row where all "
        "seeds have the same.",
        layer_figures.map_cells(final_maps(rows, seeds)),
    )


def drawn(runs: Metrics, found: Mapping[str, Any]) -> list[Drawn]:
    """Draw a run; nothing if no seed lasted. runs, found: what the analysis gives."""
    if not found["seeds"]:
        return []
    rows = found["methods"]
    return [
        *([tie_maps(runs)] if found["agents"] else []),
        learning(runs),
        methods(rows),
        *([agents(runs)] if found["agents"] else []),
        maps(rows, found["seeds"]),
    ]


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
    splits = [f"{part['pieces']:,} ({part['words']:,} words) for {name}" for name, part in data["splits"].items()]
    return f"pieces: {', '.join(splits)}; fingerprint {data['fingerprint'][:16]}"


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
    config: Mapping[str, Any],
    config_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run. config: resolved; facts: environment.json; drawn: captions and PNG files."""
    shape = f"{config['layers']} layers of width {config['width']}"
    more = "".join(f"; {written({name: value})}" for name, value in results["model"].items() if name not in config)
    budgets = [f"{_shown(budget, ',.0f')} s" for budget in results["equal_time_s"]]
    setting = {
        "corpus": ", ".join(map(str, config["corpus"])) or "the prose that CPython carries",
        "data": _data_words(results["data"]),
        "tokenizer": f"{config['tokenizer'] or 'byte-level BPE trained on the corpus'}, "
        f"vocabulary {results['data']['vocabulary']:,}",
        "model": f"{config['architecture']}, {shape}, {config['heads']} heads, context {config['context']:,}, dropout "
        f"{config['dropout']:g}, {config['objective']}{more}",
        "training": f"{results['steps']:,} steps of {config['batch_size']} blocks, learning rate {config['learning_rate']:g}, "
        f"weight decay {config['weight_decay']:g}; storage {config['storage']}",
        "ties": f"{config['ties']}, gradient {config['gradient']}, moments {config['moments']}, start {config['start']}",
        "agent": f"{config['layers'] - 1} actions an episode, k = {config['k']} batches an action, reward {config['reward']}, "
        f"epsilon at least {config['epsilon_floor']:g}",
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
        title=f"Dynamic layer tying: {config['architecture']}, {shape}",
        question="While a transformer trains, an agent decides of one layer after the other whether it has weights of its own "
        "or copies an earlier one. Does the model end as well as an untied one, in how much less memory, and does the agent do "
        "better than chance or a fixed map?",
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
        reproduce=reproduction(facts, config_text),
    )
