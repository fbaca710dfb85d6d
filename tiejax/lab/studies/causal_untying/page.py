"""The HTML report of a run, and its tables."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.sections import corpus_words, edge_notes, excluded_notes, rates_numbers
from tiejax.lab.reporting.words import Table, formatted
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.claims import PLAIN, PLANTED, SECONDARY

QUESTION = (
    "Does a causal language model with tied tables end with a higher loss than one that is never tied, and with a lower one "
    "if it is untied on the way?"
)
PLANTED_QUESTION = (
    "When a causal language model is trained with tied tables and untied on the way, which symbols come together and which "
    "part: those that are equally likely, or those that have equal effects?"
)
# The claims that answer the question, and that of planted text.
LEADING = ("tied/never", "late/tied", "late/never")
PLANTED_LEADING = ("input-distance/conflict", "output-distance/reverse", "excess/contextual")
LIMITS = (
    "One size, one text and a small vocabulary: nothing is said of larger models, or of runs longer than the longest here. "
    "The tables are a larger share of the parameters here than in large models. How long a model trains after it is untied is "
    "bound to the step of untying, since all models of one length have the same number of steps."
)
SOURCE = (
    "an open question of Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610); the protocol is ours. Models: GPT-2 (Radford "
    "et al., 2019) without dropout"
)
HEADINGS = {
    PLANTED: "Claims: planted symbols, one family; then losses, exploratory",
    PLAIN: "Claims: tied, untied late and never tied, one family",
    SECONDARY: "Claims: rare and frequent tokens, and a cosine schedule, a second family; then others, exploratory",
}


def size_words(results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the size of the models and of their text in words."""
    parameters = {row["arm"]: row["parameters"] for row in results["models"]}
    tied, untied = parameters[plan.TIED], parameters[plan.NEVER_INDEPENDENT]
    return (
        f"{settings['layers']} layers of width {settings['width']}, {tied / 1e6:.2f} million parameters tied and "
        f"{untied / 1e6:.2f} untied, {results['tokens'] / 1e6:.2f} million training tokens, {results['tokens'] / tied:.1f} and "
        f"{results['tokens'] / untied:.1f} a parameter"
    )


def bigram_words(results: Mapping[str, Any]) -> str:
    """Return how tied and never tied models compare with the bigram model of the tokens of one seed."""
    of_bigram = results["bigram"]["losses"]["1"]
    losses = {name: np.mean(np.array(results["arms"][name]["loss"], float)) for name in (plan.TIED, plan.NEVER_INDEPENDENT)}
    return (
        f"A bigram model of the tokens that one seed sees has {of_bigram:.3f} nats a token, tied models "
        f"{losses[plan.TIED]:.3f}, never tied ones {losses[plan.NEVER_INDEPENDENT]:.3f}."
    )


def finding(results: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return the answer at this size, then the counts of verdicts of each family."""
    by_id = {row["id"]: row for row in results["claims"]}
    size = "" if settings is None else f"At this size ({size_words(results, settings)}):"
    leading = PLANTED_LEADING if "planted" in results else LEADING
    counts = [f"{heading.split(',')[0]}: {tally([by_id[name] for name in results['families'][family]])}"
              for family, heading in HEADINGS.items() if results["families"].get(family)]  # fmt: skip
    answers = results["gate"]["failed"], openings(results["claims"], leading, size), bigram_words(results)
    return [answer for answer in (*answers, *counts) if answer]


def _planted_words(planted: Mapping[str, Any]) -> str:
    twins = ", ".join(f"{len(words)} of kind {kind}" for kind, words in planted["words"].items())
    return (
        f"{planted['share']:.1%} of the training tokens: {twins}, {planted['pairs_of_markers']} pairs of markers, "
        f"one of which stands before every sentence, and ciphers of {len(planted['ciphered'])} words"
    )


def _trigger_words(triggered: Mapping[str, Any]) -> str:
    steps = ", ".join(f"seed {seed}: {'never' if step is None else f'{step:,}'}" for seed, step in triggered["steps"].items())
    return (
        f"the cosine of the gradients of both uses of the table, over the 100 most frequent tokens, below "
        f"{formatted(triggered['threshold'], '.3f')} for 100 steps; step of untying: {steps}"
    )


# Parts of results.json that only some runs have -> the name of their line of the setting, and its words.
OPTIONAL = {
    "planted": ("planted", _planted_words),
    "trigger": ("untied by the gradients", _trigger_words),
}


def page(run: RunOnPage) -> str:
    """Return the HTML report of a run."""
    results, settings = run.results, run.settings
    by_id = {row["id"]: row for row in results["claims"]}
    rates, factors = results["rates"], results["table_factors"]
    setting = {
        "models": f"pre-LN transformers, {size_words(results, settings)}, {settings['heads']} heads, context "
        f"{settings['context']}, no bias of the logits except in exploratory arms; all tables start from N(0, .02^2)",
        "training": f"{results['steps']:,} steps of {settings['batch_size']} blocks, {results['epochs']:.2f} epochs; "
        "AdamW with betas .9 and .95, weight decay "
        f"{settings['weight_decay']:g} on matrices other than tables, gradients clipped at {settings['clip']:g}",
        "learning rate": f"{rates['tied']:g} of tied models, also after they are untied, times {factors['tied']:g} for the "
        f"tables, and {rates['untied']:g}, times {factors['untied']:g}, of never tied ones; it rises for 2 % of the run, is "
        "constant until 80 %, and falls linearly to 0; that of shorter runs falls in the last fifth before their end",
        "untying": "the two tables continue from the shared one, each with its moments; other policies are exploratory",
        "text": f"{corpus_words(settings)}; entropy of the token "
        f"frequencies {results['unigram_entropy']:.3f} nats; {formatted(results['bytes_per_token'], '.3f')} bytes a token; "
        f"fingerprint {results['data']['fingerprint'][:16]}",
        "final loss": f"nats a token, at the last step, on {settings['final_blocks']:,} blocks spread evenly over the "
        "validation split, or on all of them",
        "seeds": f"{len(results['seeds'])}; all arms of a seed see the same batches; an arm that unties continues its tied one",
        **{name: words_of(results[part]) for part, (name, words_of) in OPTIONAL.items() if part in results},
        "source": SOURCE,
    }
    return render(
        run,
        title="Tie, then untie, on a causal language model",
        question=PLANTED_QUESTION if "planted" in results else QUESTION,
        finding=finding(results, settings),
        setting=setting,
        notes=[*edge_notes(results), *excluded_notes(results), LIMITS],
        claims={HEADINGS[name]: [by_id[row] for row in rows] for name, rows in results["families"].items() if rows},
        numbers=tables(results),
    )


def bits_a_byte(nats: float, results: Mapping[str, Any]) -> str:
    """Return a loss in nats a token in bits a byte; a dash if a token has no number of bytes."""
    size = results["bytes_per_token"]
    return formatted(None if size is None else nats / math.log(2) / size)


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report: final losses of the arms, and learning rates that were tried."""
    sizes = {row["arm"]: row["parameters"] for row in results["models"]}
    rows = []
    for arm, row in sorted(results["arms"].items(), key=lambda item: -plan.length_of(item[0])):
        if arm.startswith(plan.EXPLORE):
            continue
        losses = np.array(row["loss"], float)
        spread = f"{losses.std(ddof=1):.4f}" if len(losses) > 1 else "-"
        ranks = [formatted(value) for value in np.array(row["by_frequency"], float).mean(0)]
        bits = bits_a_byte(losses.mean(), results)
        rows.append([arm, f"{sizes[arm]:,}", f"{losses.mean():.4f}", spread, bits, str(len(losses)), *ranks])
    ranks = [name if name == "planted" else f"rank {name}" for name in results["frequency_ranks"]]
    for length, loss in reversed(results["bigram"]["losses"].items()):
        name = plan.at_length("bigram", Fraction(length))
        rows.append([name, "-", f"{loss:.4f}", "-", bits_a_byte(loss, results), "1", *["-"] * len(ranks)])
    columns = ["arm", "parameters at the end", "mean", "standard deviation", "bits a byte", "seeds", *ranks]
    found: dict[str, Table] = {
        "Numbers: final validation loss (nats a token); NAME@F ends at the fraction F of the run": (columns, rows)
    }
    found |= rates_numbers(results)
    if "planted" in results:
        found |= _planted_tables(results)
    if "natural" in results:
        found |= _natural_tables(results["natural"])
    if explored := _explored_rows(results):
        columns = ["arm", "what differs", "seeds", "final loss", f"less {plan.untied_at(plan.LATE)}", "less tied"]
        found["Numbers: exploratory arms, means of few seeds, not tested"] = (columns, explored)
    return found


KIND_WORDS = {
    "holding": "word and twin, probability 1/2",
    "constant": "word and twin, probability .1",
    "contextual": "word and twin, probability .1 or .9 by the token before",
    "reverse": "markers A and B",
    "cipher": "word and cipher, by the marker of the sentence",
}


def _planted_tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of excess losses and of the words that are planted."""
    planted = results["planted"]
    rows = []
    for kind, described in KIND_WORDS.items():
        means = [f"{np.mean(np.array(row['excess'][kind], float)):.4f}" for row in results["arms"].values()]
        rows.append([kind, described, f"{planted['choices'][kind]:,}", f"{planted['least_loss'].get(kind, 0):.4f}", *means])
    columns = ["kind", "choice", "choices", "least loss", *results["arms"]]
    unrelated = ", ".join(" - ".join(pair) for pair in planted["unrelated"])
    chosen = [*planted["words"].items(), ("cipher", planted["ciphered"])]
    words = [*([kind, ", ".join(some)] for kind, some in chosen), ["unrelated", unrelated]]
    return {
        "Numbers: final loss of the choice between two symbols less the least possible one (nats)": (columns, rows),
        "Numbers: planted words": (["kind", "words"], words),
    }


def _natural_tables(natural: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of natural pairs: those in lists, and the distances of their rows in the tables of the arms."""
    rows = [[pair["list"], " / ".join(pair["words"]), formatted(pair["semantic"]), formatted(pair["conditional"], ".3f")]
            for pair in sorted(natural["pairs"], key=lambda pair: (str(pair["list"]), pair["semantic"] or 0))
            if pair["list"]]  # fmt: skip
    lists = list(next(iter(natural["tables"].values()))["input"])
    sizes = {name: sum(pair["list"] == name for pair in natural["pairs"]) for name in lists}
    facts = [
        ["pairs of frequent words with the most similar neighbours", f"{len(natural['pairs'])}"],
        ["never tied models in which they are measured, seeds", ", ".join(map(str, natural["seeds"]))],
        *([f"pairs, {name}", str(size)] for name, size in sizes.items()),
        ["semantic distance, one model with the other (Spearman)", formatted(natural["agreement"]["semantic"], ".3f")],
        ["conditional distance, one model with the other (Spearman)", formatted(natural["agreement"]["conditional"], ".3f")],
        ["semantic with conditional distance, over pairs (Spearman)", formatted(natural["correlation"], ".3f")],
    ]
    distances = [[arm, table, *(formatted(by_list[name], ".3f") for name in lists)]
                 for arm, tables in natural["tables"].items() for table, by_list in tables.items()]  # fmt: skip
    return {
        "Numbers: natural pairs, sizes of the lists and rank correlations": (["what", "value"], facts),
        "Numbers: natural pairs in the lowest or highest fifth of both distances": (
            ["list", "words", "semantic distance (nats)", "conditional distance (nats)"],
            rows,
        ),
        "Numbers: mean distance of the pairs of a list over that of all natural pairs, at the end": (
            ["arm", "table", *lists],
            distances,
        ),
    }


EXPLORED = {
    "zero": "at 2/3, the output table starts with new moments",
    "zero-input": "at 2/3, the input table starts with new moments",
    "slow": "after 2/3, a quarter of the learning rate for the output table",
    "fast": "after 2/3, four times the learning rate for the output table",
    "split": "at 2/3, each table takes the moments of its own use",
    "bias-tied": "a bias of the logits, always tied",
    "bias-late": "a bias of the logits, untied at 2/3",
    "bias-never": "a bias of the logits, never tied, from equal tables",
    "output-owner": "always tied; only the output use trains the table",
    "retie": "untied at 1/3, tied again at 2/3 with the mean of both tables",
    "trigger": "untied when the cosine of the gradients of both uses stays low",
    "yoked": "untied at the step of the next seed of the row above",
    "long-tied": "always tied, 1.5 times the steps",
    "long-early": "untied at step 1/3 T of 1.5 T; compared with long-tied",
}
LONGER: dict[str, tuple[str | None, str | None]] = {"long-tied": (None, None), "long-early": (None, f"{plan.EXPLORE}long-tied")}


def _explored_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the exploratory arms: their mean losses, and those less the losses of the same seeds' other arms."""
    rows, every = [], {arm: np.array(row["loss"], float) for arm, row in results["arms"].items()}
    for name, words in EXPLORED.items():
        losses = every.get(f"{plan.EXPLORE}{name}")
        if losses is None:
            continue
        compared = LONGER.get(name, (plan.untied_at(plan.LATE), plan.TIED))
        others = [losses - every[arm][: len(losses)] if arm in every else None for arm in compared]
        differences = ["-" if other is None else f"{other.mean():+.4f}" for other in others]
        rows.append([name, words, str(len(losses)), f"{losses.mean():.4f}", *differences])
    return rows
