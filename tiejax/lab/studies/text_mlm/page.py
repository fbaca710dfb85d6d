"""The HTML report of a text run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting import sections, untie_curve
from tiejax.lab.reporting.finding import gate_sentences, openings, tally
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.uses import uses_table
from tiejax.lab.reporting.words import Table
from tiejax.lab.studies.text_mlm.claims import RECORDED, TABLE_NAMES
from tiejax.lab.studies.text_mlm.settings import EQUAL
from tiejax.statistics.arms import ARMS

QUESTION = (
    "A planted twin is a new token that replaces its word at random, and so means the same. Do input, output and tied "
    "embeddings draw the two together, even if they are not equally likely, so that the distributional hypothesis (DH) fails? "
    "And what does tying cost?"
)
CLAIMS = (
    "the paper reports those marked as reported; the others are ours. A claim has one difference per seed: distances are "
    "averaged over the pairs of a kind. Relative distance: the distance at the end (mean over the last tenth of the records) "
    "divided by the distance at the start"
)
# The leading claims, by paragraph of the finding.
LEADING = (
    ("converge/tied", "unrelated/tied", "conflict-converge/input", "conflict-apart/output", "conflict-apart/tied"),
    ("tying/validation-loss", "tying/no-cost"),
    ("equal-tables/start", "equal-tables/tie", "equal-tables/most"),
)


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answers to the questions of the report, and the number of claims with each verdict."""
    answers = [openings(results["claims"], ids) for ids in LEADING]
    failed, compared = gate_sentences(results)
    return [*filter(None, [failed, *answers, compared]), tally(results["claims"])]


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report by title: final values of each arm, of each set and of each pair."""
    if not results["seeds"]:
        return {}
    final = [results["final"][arm] for arm in ARMS]
    scored = {name for name in final[0] if "loss" in name or "accuracy" in name}
    scores = [sections.arrays_in_words({name: part[name] for name in part if name in scored}) for part in final]
    shown = {"validation loss": "loss", "validation accuracy": "accuracy"}
    by_seed = [
        [str(seed), *(f"{side[name.replace(' ', '_')][row]:.4f}" for name in shown for side in results["final"].values())]
        for row, seed in enumerate(results["seeds"])
    ]
    twins = {entry["name"] for entry in results["sets"] if entry["dh"]}
    by_pair = [
        [row["pair"], row["set"], *(f"{row[table]:.3f}" for table in TABLE_NAMES)]
        for row in results["distance_ratio_by_pair"]
        if row["set"] in twins
    ]
    columns, rows = sections.medians_table(*scores)
    rows += [[f"bigram, {name}", *[f"{loss:.4f}"] * len(ARMS), "-"] for name, loss in results.get("bigram", {}).items()]
    return {
        "Numbers: losses and accuracies at the end, median [quartiles] over seeds": (columns, rows),
        "Numbers: distance at the end / at the start, mean over pairs and seeds": (
            ["pairs", *TABLE_NAMES.values()],
            [[entry["name"], *_ratios(results["final"], entry["name"])] for entry in results["sets"]],
        ),
        "Numbers: every seed, validation": (
            ["seed", *(f"{title}: {side}" for title in shown.values() for side in results["final"])],
            by_seed,
        ),
        "Numbers: every pair of twins, distance at the end / at the start (mean over seeds)": (
            ["word", "set", *TABLE_NAMES.values()],
            by_pair,
        ),
    }


def _ratios(final: Mapping[str, Any], pairs: str) -> list[str]:
    """Return the cells of a set of pairs: distance at the end / at the start in each table, the mean over seeds."""
    cells = []
    for table in TABLE_NAMES:
        recorded, arm = RECORDED[table]
        values = final[ARMS[arm]]["distance_ratio"][recorded.removeprefix("distance_")][pairs]
        cells.append(f"{np.mean(np.asarray(values, dtype=float)):.3f}")
    return cells


def shape_words(settings: Mapping[str, Any]) -> str:
    """Describe the size of the encoder."""
    return f"{settings['layers']} layers of width {settings['width']}"


def data_words(data: Mapping[str, Any]) -> str:
    """Describe the amount of text of a run, for the report's list of settings."""
    splits = [f"{part['sentences']:,} ({part['tokens']:,} tokens) for {name}" for name, part in data["splits"].items()]
    return (
        f"sentences: {', '.join(splits)}; {data['dropped']:,} too short, {data['cut']:,} cut; "
        f"fingerprint {data['fingerprint'][:16]}"
    )


def _set_words(entry: Mapping[str, Any]) -> str:
    """Describe a set of pairs, and say whether DH holds for them."""
    if entry["dh"] is None:
        return f"{entry['name']}: {entry['pairs']} pairs of different words"
    because = "as likely as its word" if entry["dh"] == "holds" else "not as likely as its word"
    return (
        f"{entry['name']}: {entry['pairs']} pairs, the twin replaces its word with probability {entry['probability']:g}, "
        f"{because}: DH {entry['dh']}"
    )


def _speed(timing: Mapping[str, Any]) -> dict[str, str]:
    if not timing["train_s"]:
        return {}
    idle = "" if timing["idle_share"] is None else f", device idle {timing['idle_share']:.1%} of the time"
    return {"speed": f"{timing['tokens_per_s']:,.0f} real tokens per second, {timing['padding']:.1%} padding{idle}"}


def page(run: RunOnPage) -> str:
    """Return the HTML report of a run."""
    results, settings = run.results, run.settings
    return render(
        run,
        title=f"Masked language modelling on text: tied against untied, {shape_words(settings)}",
        question=QUESTION,
        finding=finding(results),
        setting=_setting(results, settings),
        notes=_notes(results),
        claims={"Claims": sections.marked_as_reported(results["claims"])},
        numbers=tables(results) | uses_table(results["uses"], ARMS),
    )


def untie_page(run: RunOnPage) -> str:
    """Return the HTML report of a run with members that untie."""
    results, settings = run.results, run.settings
    setting = {
        "corpus": sections.corpus_words(settings),
        "data": data_words(results["data"]),
        "model": f"{shape_words(settings)}, {settings['heads']} heads",
        "final": "validation loss and distances: means over the last tenth of the records",
    }
    return untie_curve.render("Masked language modelling on text: tied, then untied", setting, run)


def _setting(results: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of the run in words, by name."""
    reach, initial = results["reach"]["per_coordinate"], results["reach"]["initial"]
    factor = settings.get("table_rate", 1)
    faster = "" if factor == 1 else f", learning rate of the tables multiplied by {factor:g}"
    more = [f"{name.replace('_', ' ')} {value:,}" for name, value in results["model"].items() if type(value) is int]
    equal = ", and a third time untied from equal tables, those of the tied model" if EQUAL in results["final"] else ""
    return {
        "corpus": sections.corpus_words(settings),
        "data": data_words(results["data"]),
        "tokenizer": f"{settings['tokenizer'] or 'WordPiece trained on the corpus'}, vocabulary {settings['vocab_size']:,}",
        "pairs": "; ".join(_set_words(entry) for entry in results["sets"]),
        "model": f"{shape_words(settings)}, {settings['heads']} heads, feed-forward {settings['feed_forward']}"
        f"{', a bias of the logits' if settings.get('head_bias') else ''}; {', '.join(more)}",
        "seeds": f"{len(results['seeds'])}, each tied and untied from the same initial values on the same batches{equal}",
        "training": f"{sections.training_words(results, settings)}, batches of {settings['batch_size']} sentences{faster}",
        "reach": f"the learning rates sum to {reach:.3g}, about the farthest that {settings['optimizer']} moves a coordinate; "
        f"the words of a pair start {initial:.3g} apart per coordinate",
        "claims": CLAIMS,
        "source": sections.PAPER,
        **_speed(results["timing"]),
    }


def _notes(results: Mapping[str, Any]) -> list[str]:
    """Return notes on the limits of the conclusions."""
    reach, initial = results["reach"]["per_coordinate"], results["reach"]["initial"]
    notes = sections.excluded_notes(results)
    if 2 * reach < initial:
        notes.append(
            f"The learning rates sum to {reach:.3g}: two words that start {initial:.3g} apart per coordinate cannot meet in "
            "this run, even if both moved straight towards each other. Only the direction in which pairs move can be judged."
        )
    if most := max(results["overflow"].values()):
        notes.append(f"Up to {most:,} masked tokens of a batch exceeded its prediction slots and were left out of the loss.")
    return notes
