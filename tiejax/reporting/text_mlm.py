"""The figures and the page of a run on text, from plain arrays and the body of results.json.

Arrays are `[variant, seed, record, ...]` with variants (untied, tied), by the names of metrics.npz. DH: the distributional
hypothesis, which holds for a word and its twin where the twin stands in with probability .5.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.reporting import figures, report
from tiejax.reporting.exor import (
    PANELS,
    VARIANTS,
    Drawn,
    excluded,
    flat,
    medians,
    performance,
    reproduction,
    training_of,
    uses,
    uses_table,
)

PUBLISHED_TOP = 5.0
TABLE_COLOURS = {"untied, input": figures.BLUE, "untied, output": figures.GREEN, "tied": figures.ORANGE}
TABLES = {"input": "untied input", "output": "untied output", "tied": "tied"}

Metrics = Mapping[str, np.ndarray]


class Set(NamedTuple):
    """A set of pairs that occurs: its place in the arrays, its name there, its label and colour in figures."""

    place: int
    name: str
    label: str
    colour: str


def occurring(sets: Sequence[Mapping[str, Any]]) -> list[Set]:
    """Return the sets that have pairs, in one hue where DH holds and one where it fails; sets: as in results.json."""
    found = []
    for dh, suffix, colour in (
        ("holds", " (DH holds)", figures.BLUE),
        ("fails", " (DH fails)", figures.ORANGE),
        (None, "", figures.GREEN),
    ):
        alike = [(place, entry["name"]) for place, entry in enumerate(sets) if entry["dh"] == dh and entry["pairs"]]
        for (place, name), shade in zip(alike, figures.shades(colour, len(alike)), strict=True):
            found.append(Set(place, name, f"{name}{suffix}", shade))
    return sorted(found)


def distances(metrics: Metrics, sets: Sequence[Set]) -> list[Drawn]:
    """Draw the distances of all pairs over training, and the first seed's as the paper prints them."""
    steps, colours = metrics["step"], {one.label: one.colour for one in sets}

    def panels(of_variant: Any) -> dict[str, dict[str, np.ndarray]]:
        """Return curves `[pair, record]` by table and set; of_variant: [seed, record, pair] -> [record, pair]."""
        return {
            title: {
                one.label: of_variant(metrics[f"distance_{table}"][variant])[:, metrics["pair_set"] == one.place].T
                for one in sets
            }
            for title, (table, variant) in PANELS.items()
        }

    first = panels(lambda values: values[0])
    highest = max(values.mean(0).max() for curves in first.values() for values in curves.values())
    return [
        Drawn(
            "distance",
            "Distance of the two words of a pair over training. Thin: one pair each, the median over seeds; thick: the median "
            "over the pairs of a set.",
            figures.three_panels(steps, panels(lambda values: np.median(values, axis=0)), "Euclidean distance", colours),
        ),
        Drawn(
            "distance_published",
            f"The same as the paper prints it: mean and 95 % band over the pairs of one seed (seed {metrics['seeds'][0]}).",
            figures.three_panels_published(steps, first, colours, every=1, top=max(PUBLISHED_TOP, 1.1 * highest)),
        ),
    ]


def ratios(by_pair: Sequence[Mapping[str, Any]], sets: Sequence[Set]) -> Drawn:
    """Draw how far every pair still is; by_pair: as results.json has it, distance at the end / at the start by table."""
    panels = {
        title: {one.label: np.array([row[table] for row in by_pair if row["set"] == one.name]) for one in sets}
        for title, table in zip(PANELS, TABLES, strict=True)
    }
    return Drawn(
        "distance_ratio",
        "Distance at the end (mean over the last tenth of the records) over that at the start. One dot a pair, the median over "
        "seeds, in the order of the lists of words; bars: medians; dotted: as far as at the start.",
        figures.strips(panels, "distance, end / start", {one.label: one.colour for one in sets}),
    )


def learning(metrics: Metrics) -> Drawn:
    """Draw validation and training loss and accuracy over training, every seed."""
    panels = {
        f"{split} {title}": (
            metrics["validation_step" if split == "validation" else "step"],
            dict(zip(VARIANTS, metrics[f"{split}_{measure}"], strict=True)),
            math.nan,
        )
        for split in ("validation", "train")
        for measure, title in (("loss", "loss (nats a masked piece)"), ("accuracy", "accuracy"))
    }
    return Drawn(
        "learning",
        "Loss and accuracy at the masked pieces over training, on the validation split and on the batch of the step. Thin: one "
        "seed each; thick: median. The first record, of untrained models, may lie outside.",
        figures.learning_curves(panels),
    )


def final_values(final: Mapping[str, Any], sets: Sequence[Set]) -> Drawn:
    """Draw final validation loss and accuracy and how far pairs still are, untied against tied; final: as in results.json."""
    untied, tied = (final[variant] for variant in VARIANTS)
    panels = {
        f"validation {measure}": (np.array(untied[f"validation_{measure}"]), np.array(tied[f"validation_{measure}"]))
        for measure in ("loss", "accuracy")
    }
    for one in sets:
        for table in ("input", "output"):
            title = f"distance, end / start,\n{one.label},\nuntied {table} - tied"
            separate, shared = (np.array(side["distance_ratio"][table][one.name]) for side in (untied, tied))
            panels[title] = separate, shared
    return Drawn(
        "paired_final",
        "Final values (mean over the last tenth of the records), untied against tied: one line a seed, bars: medians. "
        "Distances: medians over the pairs of a set.",
        figures.paired_values(panels),
    )


def buckets(metrics: Metrics, final: Mapping[str, Any]) -> Drawn:
    """Draw final validation loss and accuracy by how frequent the masked piece is; final: as in results.json."""
    names = [str(name) for name in metrics["bucket_names"]]

    def values(measure: str, variant: str) -> np.ndarray:
        by_name = final[variant][f"validation_{measure}_by_bucket"]
        return np.array([by_name[name] for name in names], dtype=float).T

    return Drawn(
        "buckets",
        "Final validation loss and accuracy by the masked piece's rank of frequency in the training split (and of twins), "
        "untied beside tied, and what tying changes. One dot a seed; bars: medians.",
        figures.by_bucket(
            names,
            {
                title: (values(measure, "untied"), values(measure, "tied"))
                for measure, title in (("loss", "loss (nats)"), ("accuracy", "accuracy"))
            },
        ),
    )


def norms(metrics: Metrics) -> Drawn:
    """Draw the mean norm of each table's rows over training."""
    curves = {title: metrics[f"norm_{table}"][variant] for title, (table, variant) in PANELS.items()}
    return Drawn(
        "norms",
        "Mean Euclidean norm of the rows of each table over training. Thin: one seed each; thick: median.",
        figures.curves_by_name(metrics["step"], curves, "mean norm of the rows", TABLE_COLOURS),
    )


def drawn(metrics: Metrics, results: Mapping[str, Any]) -> list[Drawn]:
    """Draw all figures of a run; metrics and results: what the analysis returns, none if no seed stayed finite."""
    if not results["seeds"]:
        return []
    sets = occurring(results["sets"])
    return [
        *distances(metrics, sets),
        ratios(results["distance_ratio_by_pair"], sets),
        learning(metrics),
        final_values(results["final"], sets),
        buckets(metrics, results["final"]),
        norms(metrics),
        uses(metrics, [str(name) for name in metrics["bucket_names"]], results["uses"]),
    ]


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the numbers of the report: medians and quartiles by variant, every seed, every pair of twins."""
    if not results["seeds"]:
        return {}
    untied, tied = (flat(results["final"][variant]) for variant in VARIANTS)
    shown = {"validation loss": "loss", "validation accuracy": "accuracy"}
    by_seed = [
        [str(seed), *(f"{side[name][row]:.4f}" for name in shown for side in (untied, tied))]
        for row, seed in enumerate(results["seeds"])
    ]
    twins = {entry["name"] for entry in results["sets"] if entry["dh"]}
    by_pair = [
        [row["pair"], row["set"], *(f"{row[table]:.3f}" for table in TABLES)]
        for row in results["distance_ratio_by_pair"]
        if row["set"] in twins
    ]
    return {
        "Numbers: median [quartiles] over seeds, final values": medians(untied, tied),
        "Numbers: every seed, validation": (
            ["seed", *(f"{title}: {side}" for title in shown.values() for side in VARIANTS)],
            by_seed,
        ),
        "Numbers: every pair of twins, distance at the end / at the start (median over seeds)": (
            ["word", "set", *TABLES.values()],
            by_pair,
        ),
    }


def written(value: Any) -> str:
    """Write a fact of a run, or several by name, for the page's setting."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {written(part)}" for name, part in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def data_words(data: Mapping[str, Any]) -> str:
    """Write how much text a run was trained on, for the page's setting."""
    splits = [f"{part['sentences']:,} ({part['pieces']:,} pieces) for {name}" for name, part in data["splits"].items()]
    return (
        f"sentences: {', '.join(splits)}; {data['dropped']:,} too short, {data['cut']:,} cut; "
        f"fingerprint {data['fingerprint'][:16]}"
    )


def _set_words(entry: Mapping[str, Any]) -> str:
    """Write what a set of pairs is, and whether DH holds in it."""
    if entry["dh"] is None:
        return f"{entry['name']}: {entry['pairs']} pairs of different words"
    because = "as likely as its word" if entry["dh"] == "holds" else "not as likely as its word"
    return (
        f"{entry['name']}: {entry['pairs']} pairs, the twin stands in with probability {entry['probability']:g}, {because}: "
        f"DH {entry['dh']}"
    )


def _speed(timing: Mapping[str, Any]) -> dict[str, str]:
    if not timing["train_s"]:
        return {}
    idle = "" if timing["idle_share"] is None else f", device idle {timing['idle_share']:.1%} of the time"
    return {"speed": f"{timing['tokens_per_s']:,.0f} real pieces per second, {timing['padding']:.1%} padding{idle}"}


def page(
    results: Mapping[str, Any],
    config: Mapping[str, Any],
    config_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run. config: resolved; facts: environment.json; drawn: captions and PNG files."""
    reach, initial = results["reach"]["per_coordinate"], results["reach"]["initial"]
    shape = f"{config['layers']} layers of width {config['width']}"
    more = "".join(f"; {written({name: value})}" for name, value in results["model"].items() if name not in config)
    setting = {
        "corpus": ", ".join(map(str, config["corpus"])) or "the prose that CPython carries",
        "data": data_words(results["data"]),
        "tokenizer": f"{config['tokenizer'] or 'WordPiece trained on the corpus'}, vocabulary {config['vocab_size']:,}",
        "pairs": "; ".join(_set_words(entry) for entry in results["sets"]),
        "model": f"{shape}, {config['heads']} heads, feed-forward {config['feed_forward']}{more}",
        "seeds": f"{len(results['seeds'])}, each tied and untied from the same initial values on the same batches",
        "training": f"{training_of(results, config)}, batches of {config['batch_size']} sentences",
        "reach": f"the learning rates sum to {reach:.3g}, about the farthest that {config['optimizer']} moves a coordinate; "
        f"the words of a pair start {initial:.3g} apart a coordinate",
        "claims": "those marked so are reported by the paper, the others ours. …/seeds: one difference a seed; …/pairs: one a "
        "pair, which says nothing of other seeds. At the end: the mean over the last tenth of the records",
        "source": "F. Bertolotti and W. Cazzola, By Tying Embeddings You Are Assuming the Distributional Hypothesis, "
        "ICML 2024, PMLR 235:3584-3610",
        **performance(results["timing"], facts),
        **_speed(results["timing"]),
    }
    notes = excluded(results)
    if 2 * reach < initial:
        notes.append(
            f"The learning rates sum to {reach:.3g}: two words that start {initial:.3g} apart a coordinate cannot meet in this "
            "run, even if both went straight to each other. Only the direction in which pairs move can be judged."
        )
    if most := max(results["overflow"].values()):
        notes.append(f"Up to {most:,} masked pieces of a batch had no slot and were left out of the loss.")
    return report.render(
        title=f"Masked language modelling on text: tied against untied, {shape}",
        question="Every planted twin means the same as its word. Do input, output and tied embeddings draw the two together, "
        "also where they are not equally likely, so that the distributional hypothesis (DH) fails? And what does tying cost?",
        setting=setting,
        notes=notes,
        claims={
            "Claims": [
                {**row, "statement": f"{row['statement']} Reported by the paper." if row["reported"] else row["statement"]}
                for row in results["claims"]
            ]
        },
        figures=drawn,
        numbers=tables(results) | uses_table(results["uses"]),
        reproduce=reproduction(facts, config_text),
    )
