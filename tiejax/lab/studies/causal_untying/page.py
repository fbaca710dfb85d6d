"""The HTML report of a run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting import page as report
from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.looks import looks_table, parts_words
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import excluded_notes, reproduction, timing_words
from tiejax.lab.reporting.words import counted
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.claims import PLAIN, PLANTED, SECONDARY

QUESTION = (
    "Does a causal language model that is trained with tied tables and untied on the way end with a lower loss than one that "
    "is always tied, or never?"
)
PLANTED_QUESTION = (
    "When a causal language model is trained with tied tables and untied on the way, which symbols come together and which "
    "part: those that are equally likely, or those that have equal effects?"
)
# The claims that answer the question, and that of planted text.
LEADING = ("late/tied", "late/never-independent", "late/never-equal", "slope/fraction")
PLANTED_LEADING = ("input-distance/conflict", "output-distance/reverse", "excess/contextual")
LIMITS = (
    "One size and one text: nothing is said of larger models. The tables are a larger share of the "
    "parameters here than in large models. How long a model trains after its untie is bound to the step of "
    "the untie, since all runs have the same number of steps."
)
SOURCE = (
    "an open question of Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610); the protocol is ours. Models: GPT-2 (Radford "
    "et al., 2019) without dropout"
)
HEADINGS = {
    PLANTED: "Claims: planted symbols, one family; then losses, exploratory",
    PLAIN: "Claims: untying late, one family",
    SECONDARY: "Claims: the same within a margin, rare and frequent tokens, and a cosine schedule, a second family; then token "
    "frequencies, exploratory",
}


def size_words(results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the size of the models and of their text in words."""
    parameters = {row["arm"]: row["parameters"] for row in results["models"]}
    return (
        f"{settings['layers']} layers of width {settings['width']}, {parameters[plan.TIED] / 1e6:.2f} million parameters tied "
        f"and {parameters[plan.NEVER_INDEPENDENT] / 1e6:.2f} untied, {results['tokens'] / 1e6:.2f} million training tokens"
    )


def finding(results: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return the answer at this size, then the counts of verdicts of each family."""
    by_id = {row["id"]: row for row in results["claims"]}
    size = "" if settings is None else f"At this size ({size_words(results, settings)}):"
    leading = PLANTED_LEADING if "planted" in results else LEADING
    counts = [f"{heading.split(',')[0]}: {tally([by_id[name] for name in results['families'][family]])}"
              for family, heading in HEADINGS.items() if results["families"].get(family)]  # fmt: skip
    return [answer for answer in (openings(results["claims"], leading, size), *counts) if answer]


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the report: final losses of the arms, and learning rates that were tried."""
    sizes = {row["arm"]: row["parameters"] for row in results["models"]}
    rows = []
    for arm, row in results["arms"].items():
        if arm.startswith(plan.EXPLORE):
            continue
        losses = np.array(row["loss"], float)
        spread = f"{losses.std(ddof=1):.4f}" if len(losses) > 1 else "-"
        ranks = [f"{value:.4f}" for value in np.array(row["by_frequency"], float).mean(0)]
        rows.append([arm, f"{sizes[arm]:,}", f"{losses.mean():.4f}", spread, str(len(losses)), *ranks])
    ranks = [f"rank {name}" for name in results["frequency_ranks"]]
    found: dict[str, tuple[list[str], list[list[str]]]] = {
        "Numbers: final validation loss (nats a token)": (
            ["arm", "parameters at the end", "mean", "standard deviation", "seeds", *ranks],
            rows,
        )
    }
    if results["tuning"]:
        rows = [row for kind, tried in results["tuning"].items() for row in _rate_rows(kind, tried)]
        seeds = ", ".join(map(str, results["tuning_seeds"]))
        found[f"Numbers: learning rates, on seeds {seeds} only"] = (["models", "rate", "mean loss", "losses"], rows)
    if "planted" in results:
        found |= _planted_tables(results)
    if explored := _explored_rows(results):
        number = len(next(row["loss"] for arm, row in results["arms"].items() if arm.startswith(plan.EXPLORE)))
        columns = ["arm", "what differs", "final loss", f"less that of {plan.untied_at(plan.LATE)}", "less that of tied"]
        found[f"Numbers: exploratory arms, means of {counted(number, 'seed')}, not tested"] = (columns, explored)
    return found | looks_table(results)


KIND_WORDS = {
    "holding": "word and twin, probability 1/2",
    "constant": "word and twin, probability .1",
    "contextual": "word and twin, probability .1 or .9 by the token before",
    "reverse": "markers A and B",
    "cipher": "word and cipher, by the marker of the sentence",
}


def _planted_tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of excess losses and of the words that are planted."""
    planted = results["planted"]
    rows = []
    for kind, described in KIND_WORDS.items():
        means = [f"{np.mean(np.array(row['excess'][kind], float)):.4f}" for row in results["arms"].values()]
        rows.append([kind, described, f"{planted['choices'][kind]:,}", f"{planted['least_loss'].get(kind, 0):.4f}", *means])
    columns = ["kind", "choice", "in the validation text", "least loss", *results["arms"]]
    unrelated = ", ".join(" - ".join(pair) for pair in planted["unrelated"])
    chosen = [*planted["words"].items(), ("cipher", planted["ciphered"])]
    words = [*([kind, ", ".join(some)] for kind, some in chosen), ["unrelated", unrelated]]
    return {
        "Numbers: final loss of the choice between two symbols less the least possible one (nats)": (columns, rows),
        "Numbers: planted words": (["kind", "words"], words),
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
    "factorised": "never tied; an input table of half the width, with a linear map",
    "long-tied": "always tied, 1.5 times the steps",
    "long-early": "untied at 1/3, 1.5 times the steps",
}


def _explored_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the exploratory arms: their mean losses, and those less the losses of the same seeds' other arms."""
    rows, every = [], {arm: np.array(row["loss"], float) for arm, row in results["arms"].items()}
    compared = (plan.untied_at(plan.LATE), plan.TIED)
    for name, words in EXPLORED.items():
        losses = every.get(f"{plan.EXPLORE}{name}")
        if losses is None:
            continue
        others = [every[arm][: len(losses)] if arm in every else losses + np.nan for arm in compared]
        rows.append([name, words, f"{losses.mean():.4f}", *(f"{(losses - other).mean():+.4f}" for other in others)])
    return rows


def _rate_rows(kind: str, tried: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the table of learning rates; the loss of a model that diverged is None in results.json."""
    rows = []
    for rate, losses in zip(tried["rates"], tried["losses"], strict=True):
        chosen = " (chosen)" if rate == tried["best"] else ""
        numbers = [np.inf if loss is None else loss for loss in losses]
        rows.append([kind, f"{rate:g}{chosen}", f"{np.mean(numbers):.4f}", ", ".join(f"{loss:.4f}" for loss in numbers)])
    return rows


def _planted_words(results: Mapping[str, Any]) -> dict[str, str]:
    if (planted := results.get("planted")) is None:
        return {}
    twins = ", ".join(f"{len(words)} of kind {kind}" for kind, words in planted["words"].items())
    return {
        "planted": f"{planted['share']:.1%} of the training tokens: {twins}, {planted['pairs_of_markers']} pairs of markers, "
        f"of which one symbol begins every sentence, and ciphers of {len(planted['ciphered'])} words"
    }


def _trigger_words(results: Mapping[str, Any]) -> dict[str, str]:
    if (triggered := results.get("trigger")) is None:
        return {}
    steps = ", ".join(f"seed {seed}: {'never' if step is None else f'{step:,}'}" for seed, step in triggered["steps"].items())
    return {
        "untied by the gradients": f"the cosine of the gradients of both uses of the table, over the 100 most frequent tokens, "
        f"below {triggered['threshold']:.3f} for 100 steps; step of the untie: {steps}"
    }


def page(run: RunOnPage) -> str:
    """Return the HTML report of a run."""
    results, settings, facts = run.results, run.settings, run.facts
    by_id = {row["id"]: row for row in results["claims"]}
    rates = results["rates"]
    setting = {
        "models": f"pre-LN transformers, {size_words(results, settings)}, {settings['heads']} heads, context "
        f"{settings['context']}, no bias of the logits; all tables start from N(0, .02^2)",
        "training": f"{results['steps']:,} steps of {settings['batch_size']} blocks, {results['epochs']:.2f} epochs; "
        "AdamW with betas .9 and .95, weight decay "
        f"{settings['weight_decay']:g} on matrices other than tables, gradients clipped at {settings['clip']:g}",
        "learning rate": f"{rates['tied']:g} of tied models, also after they are untied, and {rates['untied']:g} of never tied "
        "ones; it rises for 2 % of the run, is constant until 80 %, and falls linearly to 0",
        "untying": "the two tables continue from the shared one, each with its moments",
        "text": f"{', '.join(map(str, settings['corpus'])) or 'the prose that comes with CPython'}; entropy of the token "
        f"frequencies {results['unigram_entropy']:.3f} nats; fingerprint {results['data']['fingerprint'][:16]}",
        "final loss": f"nats a token, at the last step, on {settings['final_blocks']:,} blocks spread evenly over the "
        "validation split, or on all of them",
        "seeds": f"{len(results['seeds'])}; all arms of a seed see the same batches; an arm that unties continues its tied one",
        **_planted_words(results),
        **_trigger_words(results),
        **parts_words(results),
        "source": SOURCE,
        **timing_words(results["timing"], facts),
    }
    edges = [kind for kind, tried in results["tuning"].items() if tried["at_edge"]]
    notes = [*excluded_notes(results), LIMITS]
    if edges:
        notes.insert(
            0, f"The best learning rate of {' and '.join(edges)} models is the last that was tried; another may be better."
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
