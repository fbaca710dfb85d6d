"""The claims about dynamic layer tying, tested on paired differences: all methods of a seed see the same batches.

Source: Hay and Wolf, ICLR 2024; equal time, random ties, fixed maps and several seeds are ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.studies.layer_tying.settings import NOT_STATIC
from tiejax.statistics.claims import Claim

REPORTED = ("perplexity", "replicated", "memory")  # first parts of the ids of the claims that the paper makes
REPLICATED = 0.75  # the smallest share of copied layers that the paper reports
NOT_WORSE = "the agent's perplexity is not worse than the untied model's (supported: it is better; contradicted: it is worse)."

Rows = Mapping[str, Mapping[str, Any]]  # rows of `summary.summarise` by method


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the claims that apply to the methods of a run; rows: the output of `summary.summarise`."""
    by_method = {row["method"]: row for row in rows}

    def better(claim: str, first: str, second: str, statement: str) -> Claim | None:
        return _less(by_method, claim, first, second, statement, "test_loss", "test loss")

    every = [
        better("perplexity/agent", "agent", "untied", f"After equally many steps {NOT_WORSE}"),
        _less(
            by_method,
            "perplexity-equal-time/agent",
            "agent",
            "untied",
            f"After the same training time {NOT_WORSE}",
            "equal_time_loss",
            "validation loss at equal time",
        ),
        _replicated(by_method),
        _memory(by_method, "mean", "averaged over steps", "seeds"),
        _memory(by_method, "most", "maximum over steps", "largest"),
        better(
            "learns/found-map",
            "found-map",
            "random-map",
            "The agent's map is better than a random map of the same size, both trained from scratch.",
        ),
        better("learns/random-map", "agent", "random-map", "The agent's run is better than a random map of the same size."),
        better(
            "learns/random-agent",
            "agent",
            "random-agent",
            "The agent is better than one that always ties at random, regardless of their sizes "
            f"({_sizes(by_method)} distinct layers on average).",
        ),
        better(
            "retrained/found-map",
            "found-map",
            "agent",
            "The map that the agent found, trained from scratch, is better than the agent's run.",
        ),
        *(
            better(f"static/{name}", "agent", name, f"The agent is better than the fixed map {name}.")
            for name in by_method
            if name not in NOT_STATIC
        ),
    ]
    return [claim for claim in every if claim is not None]


def _less(rows: Rows, claim: str, first: str, second: str, statement: str, value: str, words: str) -> Claim | None:
    """Return the claim that the first method has the smaller `value`, called `words`; None if a method is missing."""
    if first not in rows or second not in rows:
        return None
    difference = np.array(rows[first][value]) - np.array(rows[second][value])
    return Claim(claim, statement, f"{words} (nats per token), {first} - {second}; one per seed", difference, -1)


def _replicated(rows: Rows) -> Claim | None:
    """Return the claim that most layers become copies."""
    if "agent" not in rows:
        return None
    return Claim(
        "replicated/agent",
        f"With the agent at least {100 * REPLICATED:g} % of the layers are copies.",
        f"share of layers that are copies at the best step, - {REPLICATED:g}; one per seed",
        np.array(rows["agent"]["replicated"]) - REPLICATED,
        1,
    )


def _memory(rows: Rows, part: str, words: str, kind: str) -> Claim | None:
    """Return the claim that the agent's ties take less memory; kind: a key of `stored_bytes` in `summary`."""
    if "agent" not in rows or "untied" not in rows:
        return None
    agent, untied = (np.array(rows[name]["bytes"]["stored_bytes"][kind], float) for name in ("agent", "untied"))
    return Claim(
        f"memory/{part}",
        f"With the agent's ties, parameters, gradients and optimizer state take less memory ({words}).",
        f"ln(bytes, {words}, agent / untied); one per seed. Median: {np.median(agent / untied):.1%} of untied",
        np.log(agent / untied),
        -1,
    )


def _sizes(rows: Rows) -> str:
    """Return the mean number of distinct layers of each agent in words."""
    numbers = [np.mean(rows[name]["distinct_in_training"]) for name in ("agent", "random-agent") if name in rows]
    return " and ".join(f"{number:.1f}" for number in numbers)
