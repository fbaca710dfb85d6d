"""The tables of the HTML report of a run."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tiejax.lab.reporting.looks import looks_table
from tiejax.lab.reporting.sections import rates_table
from tiejax.lab.studies.causal_untying import plan


def decimal(value: float | None, places: int) -> str:
    """Return a number with this many places, or a dash for one that is not defined, which is None in results.json."""
    return "-" if value is None or math.isnan(value) else f"{value:.{places}f}"


def bits_a_byte(nats: float, results: Mapping[str, Any]) -> str:
    """Return a loss in nats a token in bits a byte; a dash if a token has no number of bytes."""
    size = results["bytes_per_token"]
    return decimal(None if size is None else nats / math.log(2) / size, 4)


def tables(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the report: final losses of the arms, and learning rates that were tried."""
    sizes = {row["arm"]: row["parameters"] for row in results["models"]}
    rows = []
    for arm, row in sorted(results["arms"].items(), key=lambda item: -plan.length_of(item[0])):
        if arm.startswith(plan.EXPLORE):
            continue
        losses = np.array(row["loss"], float)
        spread = f"{losses.std(ddof=1):.4f}" if len(losses) > 1 else "-"
        ranks = [decimal(value, 4) for value in np.array(row["by_frequency"], float).mean(0)]
        bits = bits_a_byte(losses.mean(), results)
        rows.append([arm, f"{sizes[arm]:,}", f"{losses.mean():.4f}", spread, bits, str(len(losses)), *ranks])
    ranks = [name if name == "planted" else f"rank {name}" for name in results["frequency_ranks"]]
    for length, loss in reversed(results["bigram"]["losses"].items()):
        name = plan.at_length("bigram", Fraction(length))
        rows.append([name, "-", f"{loss:.4f}", "-", bits_a_byte(loss, results), "1", *["-"] * len(ranks)])
    columns = ["arm", "parameters at the end", "mean", "standard deviation", "bits a byte", "seeds", *ranks]
    found: dict[str, tuple[list[str], list[list[str]]]] = {
        "Numbers: final validation loss (nats a token); NAME@F ends at the fraction F of the run": (columns, rows)
    }
    if results["tuning"]:
        seeds = ", ".join(map(str, results["tuning_seeds"]))
        found[f"Numbers: learning rates, on seeds {seeds} only"] = rates_table(results["tuning"])
    if "planted" in results:
        found |= _planted_tables(results)
    if "natural" in results:
        found |= _natural_tables(results["natural"])
    if explored := _explored_rows(results):
        columns = ["arm", "what differs", "seeds", "final loss", f"less {plan.untied_at(plan.LATE)}", "less tied"]
        found["Numbers: exploratory arms, means of few seeds, not tested"] = (columns, explored)
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
    columns = ["kind", "choice", "choices", "least loss", *results["arms"]]
    unrelated = ", ".join(" - ".join(pair) for pair in planted["unrelated"])
    chosen = [*planted["words"].items(), ("cipher", planted["ciphered"])]
    words = [*([kind, ", ".join(some)] for kind, some in chosen), ["unrelated", unrelated]]
    return {
        "Numbers: final loss of the choice between two symbols less the least possible one (nats)": (columns, rows),
        "Numbers: planted words": (["kind", "words"], words),
    }


def _natural_tables(natural: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of natural pairs: those in lists, and the distances of their rows in the tables of the arms."""
    rows = [[pair["list"], " / ".join(pair["words"]), decimal(pair["semantic"], 4), decimal(pair["conditional"], 3)]
            for pair in sorted(natural["pairs"], key=lambda pair: (str(pair["list"]), pair["semantic"] or 0))
            if pair["list"]]  # fmt: skip
    lists = list(next(iter(natural["tables"].values()))["input"])
    sizes = {name: sum(pair["list"] == name for pair in natural["pairs"]) for name in lists}
    facts = [
        ["pairs", f"{len(natural['pairs'])}"],
        *([f"pairs {name}", str(size)] for name, size in sizes.items()),
        ["semantic distance, one model with the other (Spearman)", decimal(natural["agreement"]["semantic"], 3)],
        ["conditional distance, one model with the other (Spearman)", decimal(natural["agreement"]["conditional"], 3)],
        ["semantic with conditional distance, over pairs (Spearman)", decimal(natural["correlation"], 3)],
    ]
    distances = [[arm, table, *(decimal(by_list[name], 3) for name in lists)]
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
