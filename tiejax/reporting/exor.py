"""The figures and the page of an EXor run, from plain arrays and the body of results.json.

Trajectories are `[variant, seed, record]` with variants (untied, tied), by table (`input`, `output`) and pair.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from tiejax.reporting import figures, report
from tiejax.reporting.console import duration

VARIANTS = ("untied", "tied")
PANELS = {"untied, input": ("input", 0), "untied, output": ("output", 0), "tied": ("input", 1)}
PAIR_COLOURS = {"zero": figures.BLUE, "one": figures.ORANGE, "even_odd": figures.GREEN}
MOST_PAIRS = 105  # panels of one picture: 15 rows of 7
MEASURES = {"cross_entropy": "Cross-entropy (nats)", "accuracy": "Accuracy"}

Trajectories = Mapping[str, Mapping[str, np.ndarray]]  # table -> pair -> [variant, seed, record]


class Drawn(NamedTuple):
    """A figure with its file name and caption."""

    name: str
    caption: str
    figure: Figure


def _panels(values: Trajectories, labels: Mapping[str, str]) -> dict[str, dict[str, np.ndarray]]:
    return {
        title: {label: values[table][pair][variant] for pair, label in labels.items()}
        for title, (table, variant) in PANELS.items()
    }


def _colours(labels: Mapping[str, str]) -> dict[str, str]:
    """A pair has one colour in all variants, whether or not the other one occurs."""
    return {label: PAIR_COLOURS[pair] for pair, label in labels.items()}


def distances(steps: np.ndarray, distance: Trajectories, labels: Mapping[str, str], published_first: bool) -> list[Drawn]:
    """Draw the paper's three panels, with every seed and as the paper prints them. labels: pair -> its label."""
    panels, colours = _panels(distance, labels), _colours(labels)
    own = Drawn(
        "distance",
        "Distance between the spellings of each bit over training. Thin: one seed each; thick: median over seeds.",
        figures.three_panels(steps, panels, "Euclidean distance", colours),
    )
    published = Drawn(
        "distance_published",
        "The same as the paper prints it: mean and 95 % band over seeds, at the recorded multiples of 1,000 steps.",
        figures.three_panels_published(steps, panels, colours),
    )
    return [published, own] if published_first else [own, published]


def relative_distances(steps: np.ndarray, relative: Trajectories, labels: Mapping[str, str]) -> Drawn:
    """Draw relative distances of the pairs and of even and odd, every seed."""
    groups = {**labels, "even_odd": "even and odd"}
    return Drawn(
        "relative_distance",
        "Relative distance: over the mean distance between spellings of 0 and spellings of 1 in the same table (dotted: 1). "
        "Weight decay shrinks tables as a whole; this takes that out. Even and odd: the reverse violation.",
        figures.three_panels(steps, _panels(relative, groups), "relative distance", _colours(groups), relative=True),
    )


def all_distances(steps: np.ndarray, tables: Mapping[str, np.ndarray], pairs: np.ndarray, names: Sequence[str]) -> Drawn:
    """Draw every pair of symbols. tables: `[variant, seed, record, pair]` by table; names: by symbol."""
    number = f"all {len(pairs)}" if len(pairs) <= MOST_PAIRS else f"the first {MOST_PAIRS} of {len(pairs)}"
    return Drawn(
        "all_distances",
        f"Distances of {number} pairs of symbols over training. 0a, 0b, ...: spellings of 0; 1a, 1b, ...: of 1.",
        figures.all_distances(
            steps,
            {title: tables[table][variant] for title, (table, variant) in PANELS.items()},
            [f"{names[first]} - {names[second]}" for first, second in pairs[:MOST_PAIRS]],
        ),
    )


def learning(
    exact_steps: np.ndarray,
    exact: Mapping[str, np.ndarray],
    steps: np.ndarray,
    sampled: Mapping[str, np.ndarray],
    bayes: Mapping[str, Mapping[str, float]],
) -> Drawn:
    """Draw exact risk, where there is one, by split (`[variant, seed, record, split]`), and the sampled one.

    bayes: split -> measure -> the best value there is.
    """
    panels: dict[str, Any] = {}

    def add(kind: str, split: str, its_steps: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        for measure, title in MEASURES.items():
            if measure in values and np.isfinite(values[measure]).any():
                curves = dict(zip(VARIANTS, values[measure], strict=True))
                panels[f"{title}, {kind}"] = (its_steps, curves, bayes[split][measure])

    for place, (split, kind) in enumerate((("train", "exact, training split"), ("validation", "exact, held-out strings"))):
        add(kind, split, exact_steps, {measure: values[..., place] for measure, values in exact.items()})
    add("training strings redrawn", "train", steps, sampled)
    return Drawn(
        "learning",
        "Cross-entropy and accuracy over training. Thin: one seed each; thick: median; dashed: the best predictor there is. "
        "The first record, of untrained models, may lie outside.",
        figures.learning_curves(panels),
    )


def final_values(
    exact: Mapping[str, np.ndarray], relative: Mapping[str, Mapping[str, np.ndarray]], labels: Mapping[str, str]
) -> Drawn:
    """Draw final values `[variant, seed]`, untied against tied; relative ones by table and pair."""
    panels = {
        f"{title},\nexact, training split": (exact[measure][0], exact[measure][1])
        for measure, title in MEASURES.items()
        if measure in exact
    }
    for pair, label in {**labels, "even_odd": "even and odd"}.items():
        for table in ("input", "output"):
            title = f"relative distance,\n{label},\nuntied {table} - tied"
            panels[title] = relative[table][pair][0], relative["input"][pair][1]
    return Drawn(
        "paired_final",
        "Final values (mean over the last whole learning-rate cycle), untied against tied: one line a seed, bars: medians.",
        figures.paired_values(panels),
    )


def pair_label(bit: str, imbalance: float) -> str:
    """Name a pair by its bit and by whether its spellings are equally likely (imbalance 0)."""
    return f"{bit} pair (DH {'holds' if imbalance < 1e-9 else 'fails'})"


def symbol_names(zero: int, one: int) -> list[str]:
    """Name the symbols: 0a, 0b, ..., 1a, 1b, ..., even, odd, mask."""

    def spellings(bit: str, number: int) -> list[str]:
        return [f"{bit}{chr(ord('a') + k) if number <= 26 else f'.{k}'}" for k in range(number)]

    return [*spellings("0", zero), *spellings("1", one), "even", "odd", "mask"]


def flat(entry: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of a nested mapping by their names in words; entries that are None are left out."""
    rows: dict[str, np.ndarray] = {}
    for name, value in entry.items():
        words = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            rows |= flat(value, f"{words}, ")
        elif value is not None:
            rows[words] = np.asarray(value, dtype=float)  # null, as in an empty split, becomes NaN
    return rows


def uses(metrics: Mapping[str, np.ndarray], names: Sequence[str], of_variants: Sequence[Mapping[str, Any]]) -> Drawn:
    """Draw what each use of a table asks of it: gradients of the input and of the output use over training and by bucket.

    metrics: `use_*` as recorded, `[variant, seed, record, ...]`. names: of the buckets. of_variants: `uses` of results.json.
    """
    late = max(1, metrics["use_ratio"].shape[2] // 10)
    with np.errstate(divide="ignore", invalid="ignore"):  # a symbol that does not occur is not asked for as an input
        ratio = metrics["use_bucket_output"][:, :, -late:] / metrics["use_bucket_input"][:, :, -late:]

    def median(values: np.ndarray) -> float:
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if finite.size else math.nan

    by_bucket = {
        name: [median(ratio[variant, ..., bucket]) for bucket in range(len(names))] for variant, name in enumerate(VARIANTS)
    }
    published = [(row["from"], row["to"], row["published"]) for row in of_variants if row["published"]]
    return Drawn(
        "uses",
        "What each use of a table asks of it: the norm of the gradient of the output use over that of the input use (dotted: "
        "1), and the cosine of both, on the batch of the step. Untied: gradients of two tables. Thin: one seed each; thick: "
        "median. Dashed: a published log of OLMo-1B (arXiv:2603.26663), which compares a gradient of activations with one of "
        "weights. Right: median over seeds and the last tenth of the records.",
        figures.uses(
            metrics["step"],
            dict(zip(VARIANTS, metrics["use_ratio"], strict=True)),
            dict(zip(VARIANTS, metrics["use_cosine"], strict=True)),
            published,
            by_bucket,
            names,
        ),
    )


def uses_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the report's table of both uses over training, beside the published ratios; rows: `uses` of results.json."""
    shown = []
    for row in rows:
        low, high = f"{row['from']:,}", "the end" if row["to"] is None else f"{row['to'] - 1:,}"
        own = [f"{row[name][measure]:.3g}" for measure in ("ratio", "share", "cosine") for name in VARIANTS]
        shown.append(
            [f"{low} to {high}" if row["to"] != 1 else "0", *own, f"{row['published']:g}" if row["published"] else "-"]
        )
    measures = ("output / input", "share of the output use", "cosine")
    headings = ["steps", *(f"{measure}, {name}" for measure in measures for name in VARIANTS), "OLMo-1B, published"]
    title = "What each use of a table asks of it: norms of gradients, medians over records and seeds"
    return {title: (headings, shown)} if rows else {}


def medians(untied: Mapping[str, np.ndarray], tied: Mapping[str, np.ndarray]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the report's table of medians and quartiles over seeds, values `[seed]` by name."""
    rows = []
    for name in untied:
        row = [name]
        for values in (untied[name], tied[name], tied[name] - untied[name]):
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
            row.append("-" if math.isnan(middle) else f"{middle:.4f}  [{low:.4f}, {high:.4f}]")
        rows.append(row)
    return ["", *VARIANTS, "tied - untied"], rows


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the numbers of the report: medians and quartiles by variant, then every seed."""
    untied, tied = (flat(results["final"][variant]) for variant in VARIANTS)
    if not results["seeds"]:
        return {}
    shown = {"exact cross entropy, train": "cross-entropy", "exact accuracy, train": "accuracy"}
    shown |= {
        f"relative distance, {table}, {bit}": f"{bit}, {table}" for bit in ("zero", "one") for table in ("input", "output")
    }
    columns = [name for name in shown if name in untied]
    by_seed = [
        [
            str(seed),
            *("-" if np.isnan(side[name][row]) else f"{side[name][row]:.4f}" for name in columns for side in (untied, tied)),
        ]
        for row, seed in enumerate(results["seeds"])
    ]
    headings = ["seed", *(f"{shown[name]}: {side}" for name in columns for side in VARIANTS)]
    return {
        "Numbers: median [quartiles] over seeds, final values": medians(untied, tied),
        "Numbers: every seed (exact risk of the training split; relative distances of the pairs)": (headings, by_seed),
    }


def performance(timing: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Write a run's times for the page's setting; nothing if this process trained nothing."""
    if not timing["train_s"]:
        return {}
    since = " since the run was last resumed" if facts.get("resumed") else ""
    devices = f"{len(facts['devices'])} x {facts['devices'][0]}"
    return {
        "time": f"{duration(timing['train_s'])} of training{since}, {timing['compile_s']:.1f} s of compilation, "
        f"{timing['model_steps_per_s']:,.0f} model-steps per second, on {devices}"
    }


def model_of(results: Mapping[str, Any]) -> str:
    """Write what the model of a run is, for the page's setting."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["model"].items())


def training_of(results: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Write how a run was trained, for the page's setting."""
    return (
        f"{results['steps']:,} steps of {config['optimizer']}, {config['schedule']} rate from "
        f"{config['learning_rate']:g}, weight decay {config['weight_decay']:g}"
    )


def reproduction(facts: Mapping[str, Any], config_text: str) -> dict[str, str]:
    """Write how to repeat a run: its command, its settings, what it was made with."""
    packages = [f"{name} {version}" for name, version in facts["versions"].items()]
    return {
        "The command of this run:": facts["command"],
        "All its settings, for --config:": config_text,
        "With:": "\n".join([*packages, f"python {facts['python']}", *facts["devices"], f"commit {facts['git_commit']}"]),
    }


def excluded(results: Mapping[str, Any]) -> list[str]:
    """Return the page's note on members that became non-finite, if there are any."""
    members = ", ".join(f"{row['variant']} seed {row['seed']} (at step {row['step']})" for row in results["non_finite"])
    return [f"Left out with their partners because they became non-finite: {members}."] if results["excluded_seeds"] else []


def page(
    results: Mapping[str, Any],
    config: Mapping[str, Any],
    config_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run. config: resolved; facts: environment.json; drawn: captions and PNG files."""
    bits, model, bayes, timing = results["bits"], results["model"], results["bayes"], results["timing"]
    setting = {
        "variant": f"{results['variant']}: 0 is spelled with probabilities {results['zero']}, 1 with {results['one']}",
        "strings": f"{2**bits - 1} of {bits} bits, {config['batch_size'] or 'the whole training split'} a batch",
        "model": model_of(results),
        "seeds": f"{len(results['seeds'])}, each tied and untied from the same initial values on the same batches",
        "training": training_of(results, config),
        "Bayes": f"accuracy {bayes['accuracy']:.4f}, cross-entropy {bayes['cross_entropy']:.4f} nats "
        f"(training split: {bayes['splits']['train']['accuracy']:.4f}, {bayes['splits']['train']['cross_entropy']:.4f})",
        "source": "F. Bertolotti and W. Cazzola, By Tying Embeddings You Are Assuming the Distributional Hypothesis, "
        "ICML 2024, PMLR 235:3584-3610",
    }
    setting |= performance(timing, facts)
    notes = excluded(results)
    both = len(results["solved_pairs"])
    if results["solved"]:
        counts = {name: f"{sum(values)} of {len(values)}" for name, values in results["solved"].items()}
        setting["solved"] = (
            f"untied {counts['untied']}, tied {counts['tied']}; both of a pair {both} "
            "(exact cross-entropy within .1 nat of Bayes)"
        )
    else:
        notes.append("There is no exact risk: the task has too many contexts, or no seed stayed finite.")
    return report.render(
        title=f"EXor, {results['variant']}: tied against untied, {model['architecture']} {model['size']}",
        question="Two spellings of a bit mean the same. Do input, output and tied embeddings draw them together, also where "
        "they are not equally likely, so that the distributional hypothesis (DH) fails? And what does tying cost there?",
        setting=setting,
        notes=notes,
        claims={
            "Claims": results["claims"],
            f"The same among the {both} pairs that both solved the task": results["claims_solved_pairs"],
        },
        figures=drawn,
        numbers=tables(results) | uses_table(results["uses"]),
        reproduce=reproduction(facts, config_text),
    )
