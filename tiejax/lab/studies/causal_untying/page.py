"""The HTML report of a run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.looks import parts_words
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import excluded_notes, reproduction, timing_words
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.claims import PLAIN, PLANTED, SECONDARY
from tiejax.lab.studies.causal_untying.tables import decimal, tables

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


def _planted_words(planted: Mapping[str, Any]) -> dict[str, str]:
    twins = ", ".join(f"{len(words)} of kind {kind}" for kind, words in planted["words"].items())
    return {
        "planted": f"{planted['share']:.1%} of the training tokens: {twins}, {planted['pairs_of_markers']} pairs of markers, "
        f"one of which stands before every sentence, and ciphers of {len(planted['ciphered'])} words"
    }


def _natural_words(natural: Mapping[str, Any]) -> dict[str, str]:
    agreement = natural["agreement"]
    return {
        "natural pairs": f"{len(natural['pairs'])} pairs of frequent words with the most similar neighbours, measured in never "
        f"tied models of seeds {', '.join(map(str, natural['seeds']))}; Spearman correlation between the two models: semantic "
        f"distance {decimal(agreement['semantic'], 2)}, conditional distance {decimal(agreement['conditional'], 2)}; between "
        f"the two distances {decimal(natural['correlation'], 2)}"
    }


def _trigger_words(triggered: Mapping[str, Any]) -> dict[str, str]:
    steps = ", ".join(f"seed {seed}: {'never' if step is None else f'{step:,}'}" for seed, step in triggered["steps"].items())
    return {
        "untied by the gradients": f"the cosine of the gradients of both uses of the table, over the 100 most frequent tokens, "
        f"below {decimal(triggered['threshold'], 3)} for 100 steps; step of untying: {steps}"
    }


# Parts of results.json that only some runs have -> their lines of the setting.
OPTIONAL = {"planted": _planted_words, "trigger": _trigger_words, "natural": _natural_words}


def page(run: RunOnPage) -> str:
    """Return the HTML report of a run."""
    results, settings, facts = run.results, run.settings, run.facts
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
        "text": f"{', '.join(map(str, settings['corpus'])) or 'the prose that comes with CPython'}; entropy of the token "
        f"frequencies {results['unigram_entropy']:.3f} nats; {decimal(results['bytes_per_token'], 3)} bytes a token; "
        f"fingerprint {results['data']['fingerprint'][:16]}",
        "final loss": f"nats a token, at the last step, on {settings['final_blocks']:,} blocks spread evenly over the "
        "validation split, or on all of them",
        "seeds": f"{len(results['seeds'])}; all arms of a seed see the same batches; an arm that unties continues its tied one",
        **{
            name: words
            for part, words_of in OPTIONAL.items()
            if part in results
            for name, words in words_of(results[part]).items()
        },
        **parts_words(results),
        "source": SOURCE,
        **timing_words(results["timing"], facts),
    }
    edges = [kind for kind, tried in results["tuning"].items() if tried["at_edge"]]
    notes = [*excluded_notes(results), LIMITS]
    if edges:
        notes.insert(
            0, f"The best learning rate of {' and '.join(edges)} models is at the edge of those tried; another may be better."
        )
    return report.render(
        title="Tie, then untie, on a causal language model",
        question=PLANTED_QUESTION if "planted" in results else QUESTION,
        finding=finding(results, settings),
        setting=setting,
        notes=notes,
        claims={HEADINGS[name]: [by_id[row] for row in rows] for name, rows in results["families"].items() if rows},
        figures=run.pictures,
        numbers=tables(results),
        reproduce=reproduction(facts, run.settings_text),
    )
