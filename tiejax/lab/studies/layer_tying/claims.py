"""The claims about dynamic layer tying, tested on paired differences: all methods of a seed see the same batches.

Source: Hay and Wolf, ICLR 2024; equal time, random ties, fixed maps and several seeds are ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.studies.layer_tying.settings import NOT_STATIC
from tiejax.statistics.claims import Claim, Family, Goal

REPORTED = ("perplexity", "replicated", "memory")  # first parts of the ids of the claims that the paper makes
REPLICATED = 0.75  # the smallest share of copied layers that the paper reports
MARGIN = 0.01  # nats per token
NOT_WORSE = f"the agent's loss exceeds the untied model's by less than {MARGIN:g} nats per token."

Rows = Mapping[str, Mapping[str, Any]]  # rows of `summary.summarise` by method


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the claims that apply to the methods of a run; rows: the output of `summary.summarise`."""
    by_method = {row["method"]: row for row in rows}

    def better(claim: str, first: str, second: str, statement: str, family: Family = "registered") -> Claim | None:
        return _less(by_method, claim, (first, second), statement, family=family)

    every = [
        _less(by_method, "perplexity/agent", ("agent", "untied"), f"After equally many steps {NOT_WORSE}", "non-inferiority"),
        _less(
            by_method,
            "perplexity-equal-time/agent",
            ("agent", "untied"),
            f"After the same training time {NOT_WORSE}",
            "non-inferiority",
            value="equal_time_loss",
            words="validation loss at equal time",
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
            better(f"static/{name}", "agent", name, f"The agent is better than the fixed map {name}.", "exploratory")
            for name in by_method
            if name not in NOT_STATIC
        ),
    ]
    return [claim for claim in every if claim is not None]


def _less(
    rows: Rows,
    claim: str,
    methods: tuple[str, str],
    statement: str,
    goal: Goal = "difference",
    family: Family = "registered",
    value: str = "test_loss",
    words: str = "test loss",
) -> Claim | None:
    """Return the claim that the first method has the smaller `value`, called `words`; None if a method is missing."""
    first, second = methods
    if first not in rows or second not in rows:
        return None
    difference = np.array(rows[first][value]) - np.array(rows[second][value])
    estimand = f"the mean {words}, {first} - {second}"
    return Claim(claim, statement, estimand, difference, -1, goal=goal, family=family, unit="nats per token", margin=MARGIN)


def _replicated(rows: Rows) -> Claim | None:
    """Return the claim that most layers become copies."""
    if "agent" not in rows:
        return None
    return Claim(
        "replicated/agent",
        f"With the agent at least {100 * REPLICATED:g} % of the layers are copies.",
        f"the mean share of layers that are copies at the best step, less {REPLICATED:g}",
        np.array(rows["agent"]["replicated"]) - REPLICATED,
        1,
        unit="share of layers",
    )


def _memory(rows: Rows, part: str, words: str, kind: str) -> Claim | None:
    """Return the claim that the agent's ties take less memory; kind: a key of `stored_bytes` in `summary`."""
    if "agent" not in rows or "untied" not in rows:
        return None
    agent, untied = (np.array(rows[name]["bytes"]["stored_bytes"][kind], float) for name in ("agent", "untied"))
    return Claim(
        f"memory/{part}",
        f"With the agent's ties, parameters, gradients and optimizer state take less memory ({words}).",
        f"the mean ln of the ratio of bytes ({words}), agent / untied",
        np.log(agent / untied),
        -1,
    )


def _sizes(rows: Rows) -> str:
    """Return the mean number of distinct layers of each agent in words."""
    numbers = [np.mean(rows[name]["distinct_in_training"]) for name in ("agent", "random-agent") if name in rows]
    return " and ".join(f"{number:.1f}" for number in numbers)
