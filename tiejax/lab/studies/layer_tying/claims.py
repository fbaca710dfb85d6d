"""The claims about dynamic layer tying, tested on paired differences: all methods of a seed see the same batches.

Source: Hay and Wolf, ICLR 2024; equal time, random ties, fixed maps and several seeds are ours.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.studies.layer_tying.settings import AFTER_AGENT, AGENTS, NOT_STATIC
from tiejax.lab.studies.layer_tying.variants import Variant
from tiejax.statistics.claims import Claim, Family, Goal

REPORTED = ("perplexity", "replicated", "memory")  # first parts of the ids of the claims that the paper makes
REPLICATED = 0.75  # the smallest share of copied layers that the paper reports
MARGIN = 0.01  # nats per token
CHOSEN_MAP = "sequence"  # the fixed map that a registered claim compares with the agent
EQUAL_BYTES = 0.02  # the largest relative difference of bytes that count as equal

Rows = Mapping[str, Mapping[str, Any]]  # rows of `analysis.summarise` by method


def claims(rows: Sequence[Mapping[str, Any]], variants: Mapping[str, Variant]) -> list[Claim]:
    """Return the claims that apply to the methods of a run.

    rows: the output of `analysis.summarise`. variants: those of the settings, by name.

    The registered claims of the published configuration are few enough that its first look, at ten seeds, can decide each.
    """
    by_method = {row["method"]: row for row in rows}
    every = [*_of_agents(by_method, variants), *_of_variants(by_method, variants), *_against_untied(by_method)]
    every += _against_width(by_method, variants)
    return [claim for claim in every if claim is not None]


def _of_agents(rows: Rows, variants: Mapping[str, Variant]) -> list[Claim | None]:
    """Return the claims about agents and the maps that they found."""
    tested, described = functools.partial(_less, rows), functools.partial(_less, rows, family="exploratory")
    size_of = functools.partial(_size, rows)
    # fmt: off
    found = [
        tested("perplexity/agent", ("agent", "untied"),
               "After equally many steps the agent's loss is below the untied model's."),
        described("perplexity-equal-time/agent", ("agent", "untied"),
                  "After the same training time the agent's loss is below the untied model's.",
                  value="equal_time_loss", words="validation loss at equal time"),
        *_of_ties(rows),
        tested("learns/found-map", ("found-map", "random-map"),
               "The agent's map is better than a random map of the same size, both trained from scratch."),
        described("learns/random-map", ("agent", "random-map"),
                  "The agent's run is better than a random map of the same size."),
        tested("learns/random-agent", ("agent", "random-agent"),
               f"The agent, with {size_of('agent')}, is better than one that always ties at random, with "
               f"{size_of('random-agent')}."),
        described("retrained/found-map", ("found-map", "agent"),
                  "The map that the agent found, trained from scratch, is better than the agent's run."),
    ]
    # fmt: on
    for name in rows:
        if name not in NOT_STATIC and name not in variants:
            statement = (
                f"The agent, with {size_of('agent')} and {_bytes(rows, 'agent', name)} of the bytes of {name}, is better than "
                f"this fixed map, with {size_of(name)}."
            )
            found.append((tested if name == CHOSEN_MAP else described)(f"static/{name}", ("agent", name), statement))
    return found


def _of_variants(rows: Rows, variants: Mapping[str, Variant]) -> list[Claim | None]:
    """Return the claims of the variants' fields `better_than` and `not_worse_than`."""
    found = []
    for name, variant in variants.items():
        if (other := variant.better_than) is not None:
            statement = f"{name} has a lower loss than {other}, with {_bytes(rows, name, other)} of the bytes of {other}."
            found.append(_less(rows, f"better/{name}", (name, other), statement))
        if (other := variant.not_worse_than) is not None:
            size = f"whose parameters take {_bytes(rows, name, other)} of the bytes of {other}"
            statement = f"{name}, {size}, has a loss less than {MARGIN:g} above that of {other}."
            found.append(_less(rows, f"not-worse/{name}", (name, other), statement, "non-inferiority"))
    return found


def _against_untied(rows: Rows) -> list[Claim | None]:
    """Return, for description, how far the loss of each method without an agent lies from that of the untied model."""
    return [
        _less(rows, f"from-untied/{name}", (name, "untied"), f"{name} has a lower loss than untied.", family="exploratory")
        for name in rows
        if name not in AGENTS and name != "untied"
    ]


def _against_width(rows: Rows, variants: Mapping[str, Variant]) -> list[Claim | None]:
    """Return, for description, the losses of fixed maps less that of a variant of another width that has as many bytes."""
    resized = [name for name, variant in variants.items() if variant.width is not None]
    registered = {
        (name, other) for name, variant in variants.items() for other in (variant.better_than, variant.not_worse_than)
    }
    return [
        _less(
            rows,
            f"from-{other}/{name}",
            (name, other),
            f"{name} has a lower loss than {other}, with {_bytes(rows, name, other)} of the bytes of {other}.",
            family="exploratory",
        )
        for place, other in enumerate(resized)
        if other in rows
        for name in rows
        if name not in (*AGENTS, *AFTER_AGENT, *resized[: place + 1])
        and not {(name, other), (other, name)} & registered
        and abs(_bytes_ratio(rows, name, other) - 1) < EQUAL_BYTES
    ]


def _bytes(rows: Rows, first: str, second: str) -> str:
    """Return the ratio of the bytes of two methods' parameters in words; "" if one is missing."""
    if first not in rows or second not in rows:
        return ""
    return f"{_bytes_ratio(rows, first, second):.1%}".replace("%", " %")


def _bytes_ratio(rows: Rows, first: str, second: str) -> float:
    """Return the bytes of a method's parameters over those of another, means over training and seeds."""
    one, other = (float(np.mean(rows[name]["bytes"]["parameter_bytes"]["seeds"])) for name in (first, second))
    return one / other


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


def _of_ties(rows: Rows) -> Iterator[Claim]:
    """Yield the claims about the copies that the agent makes, and the memory that its ties take."""
    if "agent" not in rows:
        return
    replicated = np.array(rows["agent"]["replicated"])
    yield Claim(
        "replicated/agent",
        f"With the agent at least {100 * REPLICATED:g} % of the layers are copies.",
        f"the mean share of layers that are copies at the best step, less {REPLICATED:g}",
        replicated - REPLICATED,
        1,
        unit="share of layers",
        one_arm=True,
    )
    if "random-agent" in rows:
        yield Claim(
            "learns/replicated",
            "More layers are copies with the agent than with one that always ties at random.",
            "the mean share of layers that are copies at the best step, agent - random-agent",
            replicated - np.array(rows["random-agent"]["replicated"]),
            1,
            family="exploratory",
            unit="share of layers",
        )
    kinds: dict[str, tuple[str, str, Family]] = {  # with a key of `stored_bytes` in `summarise`
        "mean": ("averaged over steps", "seeds", "registered"),
        "most": ("maximum over steps", "largest", "exploratory"),
    }
    for part, (words, kind, family) in kinds.items() if "untied" in rows else ():
        agent, untied = (np.array(rows[name]["bytes"]["stored_bytes"][kind], float) for name in ("agent", "untied"))
        yield Claim(
            f"memory/{part}",
            f"With the agent's ties, parameters, gradients and optimizer state take less memory ({words}).",
            f"the mean ln of the ratio of bytes ({words}; without the agent's network), agent / untied",
            np.log(agent / untied),
            -1,
            family=family,
        )


def _size(rows: Rows, method: str) -> str:
    """Return the mean number of distinct layers of a method in training, in words; "" if it is missing."""
    return f"{np.mean(rows[method]['distinct_in_training']):.1f} distinct layers" if method in rows else ""
