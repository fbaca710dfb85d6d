"""The claims about dynamic layer tying, as tests of paired differences: all methods of a seed see the same batches.

Source: Hay and Wolf, ICLR 2024; equal time, random ties, fixed maps and several seeds are ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.studies.layer_tying.settings import NOT_STATIC
from tiejax.statistics.claims import Claim

REPORTED = ("perplexity", "replicated", "memory")  # the claims that the paper reports, by the first part of their ids
REPLICATED = 0.75  # the share of layers that the paper reports to be copies, at least
NOT_WORSE = "the agent's perplexity is not worse than the untied model's (supported: it is better; contradicted: it is worse)."

Rows = Mapping[str, Mapping[str, Any]]  # method -> its row, as `summary.summarise` gives it


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the claims that the methods allow; rows: as `summary.summarise` gives them."""
    of = {row["method"]: row for row in rows}

    def better(claim: str, first: str, second: str, statement: str) -> Claim | None:
        return _less(of, claim, first, second, statement, "test_loss", "test loss")

    every = [
        better("perplexity/agent", "agent", "untied", f"On the same number of steps {NOT_WORSE}"),
        _less(
            of,
            "perplexity-equal-time/agent",
            "agent",
            "untied",
            f"In the same time {NOT_WORSE}",
            "equal_time_loss",
            "validation loss at equal time",
        ),
        _replicated(of),
        _memory(of, "mean", "averaged over the steps", "seeds"),
        _memory(of, "most", "the most of any step", "largest"),
        better(
            "learns/found-map",
            "found-map",
            "random-map",
            "The agent's map is better than a random one of its size, both trained from scratch.",
        ),
        better("learns/random-map", "agent", "random-map", "The agent's run is better than a random map of its size."),
        better(
            "learns/random-agent",
            "agent",
            "random-agent",
            "The agent is better than one that ties at random all along, whatever their sizes "
            f"({_sizes(of)} distinct layers on average).",
        ),
        better(
            "retrained/found-map",
            "found-map",
            "agent",
            "Retrained from scratch the found map is better than the agent's own run.",
        ),
        *(
            better(f"static/{name}", "agent", name, f"The agent is better than the fixed map {name}.")
            for name in of
            if name not in NOT_STATIC
        ),
    ]
    return [claim for claim in every if claim is not None]


def _less(of: Rows, claim: str, first: str, second: str, statement: str, value: str, words: str) -> Claim | None:
    """Return the claim that the first method has the smaller `value`, called `words`; None where one of both is not there."""
    if first not in of or second not in of:
        return None
    difference = np.array(of[first][value]) - np.array(of[second][value])
    return Claim(claim, statement, f"{words} (nats a token), {first} - {second}; one a seed", difference, -1)


def _replicated(of: Rows) -> Claim | None:
    """Return the claim that most layers become copies."""
    if "agent" not in of:
        return None
    return Claim(
        "replicated/agent",
        f"Under the agent at least {100 * REPLICATED:g} % of the layers are copies.",
        f"share of the layers that are copies, at the best step, - {REPLICATED:g}; one a seed",
        np.array(of["agent"]["replicated"]) - REPLICATED,
        1,
    )


def _memory(of: Rows, part: str, words: str, kind: str) -> Claim | None:
    """Return the claim that the agent's ties take less memory; kind: of the bytes, as `summary` calls it."""
    if "agent" not in of or "untied" not in of:
        return None
    agent, untied = (np.array(of[name]["bytes"]["stored_bytes"][kind], float) for name in ("agent", "untied"))
    return Claim(
        f"memory/{part}",
        f"With the agent's ties parameters, gradients and optimizer take less memory, {words}.",
        f"ln(bytes, {words}, agent / untied); one a seed. Median: {np.median(agent / untied):.1%} of the untied model's bytes",
        np.log(agent / untied),
        -1,
    )


def _sizes(of: Rows) -> str:
    """Write how many distinct layers the agents that there are had on average."""
    numbers = [np.mean(of[name]["distinct_in_training"]) for name in ("agent", "random-agent") if name in of]
    return " and ".join(f"{number:.1f}" for number in numbers)
