"""The claims about dynamic layer tying, tested on paired differences: all methods of a seed see the same batches.

Source: Hay and Wolf, ICLR 2024; equal time, random ties, fixed maps and several seeds are ours.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting.words import share
from tiejax.lab.studies.layer_tying.settings import AFTER_AGENT, AGENTS, NOT_STATIC
from tiejax.lab.studies.layer_tying.variants import Variant
from tiejax.statistics.claims import Claim, Family, Goal

REPORTED = ("perplexity", "replicated", "memory")  # first parts of the ids of the claims that the paper makes
LEARNS = "learns/"  # how the ids of claims that an agent learns begin
REPLICATED = 0.75  # the smallest share of copied layers that the paper reports
MARGIN = 0.01  # nats per token
CHOSEN_MAP = "sequence"  # the fixed map that a registered claim compares with the agent
EQUAL_BYTES = 0.02  # the largest relative difference of bytes that count as equal
LOSSES = {"test_loss": "test loss", "equal_time_loss": "validation loss at equal time"}
LOWER = "{first} has a lower loss than {second}, with {bytes} of the bytes of {second}."
NOT_WORSE = (
    "{first}, whose parameters take {bytes} of the bytes of {second}, has a loss less than {margin:g} above that of {second}."
)

Rows = Mapping[str, Mapping[str, Any]]  # rows of `analysis.summarise` by method


def claims(rows: Sequence[Mapping[str, Any]], variants: Mapping[str, Variant]) -> list[Claim]:
    """Return the claims that apply to the methods of a run.

    rows: the output of `analysis.summarise`, with which models `diverged`. variants: those of the settings, by name.

    The registered claims of the published configuration are few enough that its first look, at ten seeds, can decide each.
    """
    by_method = {row["method"]: row for row in rows}
    return [
        *_of_agents(by_method, variants),
        *_of_variants(by_method, variants),
        *_against_untied(by_method),
        *_against_width(by_method, variants),
    ]


def _of_agents(rows: Rows, variants: Mapping[str, Variant]) -> Iterator[Claim]:
    """Yield the claims about agents and the maps that they found."""
    less = functools.partial(_less, rows)
    lower = "the agent's loss is below the untied model's."
    yield from less("perplexity/agent", "agent", "untied", f"After equally many steps {lower}", "registered")
    words = f"After the same training time {lower}"
    yield from less("perplexity-equal-time/agent", "agent", "untied", words, value="equal_time_loss")
    if "agent" in rows:
        yield from _of_ties(rows)
    words = "The agent's map is better than a random map of the same size, both trained from scratch."
    yield from less("learns/found-map", "found-map", "random-map", words, "registered")
    yield from less("learns/random-map", "agent", "random-map", "The agent's run is better than a random map of the same size.")
    words = "The agent, with {size}, is better than one that always ties at random, with {other_size}."
    yield from less("learns/random-agent", "agent", "random-agent", words, "registered")
    words = "The map that the agent found, trained from scratch, is better than the agent's run."
    yield from less("retrained/found-map", "found-map", "agent", words)
    words = "The agent, with {size} and {bytes} of the bytes of {second}, is better than this fixed map, with {other_size}."
    for name in rows:
        if name not in NOT_STATIC and name not in variants:
            yield from less(f"static/{name}", "agent", name, words, "registered" if name == CHOSEN_MAP else "exploratory")


def _of_variants(rows: Rows, variants: Mapping[str, Variant]) -> Iterator[Claim]:
    """Yield the claims of the variants' fields `better_than` and `not_worse_than`."""
    for name, variant in variants.items():
        yield from _less(rows, f"better/{name}", name, variant.better_than, LOWER, "registered")
        yield from _less(rows, f"not-worse/{name}", name, variant.not_worse_than, NOT_WORSE, "registered", "non-inferiority")


def _against_untied(rows: Rows) -> Iterator[Claim]:
    """Yield, for description, how far the loss of each method without an agent lies from that of the untied model."""
    for name in rows:
        if name not in AGENTS and name != "untied":
            yield from _less(rows, f"from-untied/{name}", name, "untied", "{first} has a lower loss than {second}.")


def _against_width(rows: Rows, variants: Mapping[str, Variant]) -> Iterator[Claim]:
    """Yield, for description, the losses of fixed maps less that of a variant of another width that has as many bytes."""
    resized = [name for name, variant in variants.items() if variant.width is not None]
    registered = {
        (name, other) for name, variant in variants.items() for other in (variant.better_than, variant.not_worse_than)
    }
    for place, other in enumerate(resized):
        for name in rows if other in rows else ():
            compared = name in (*AGENTS, *AFTER_AGENT, *resized[: place + 1]) or {(name, other), (other, name)} & registered
            if not compared and abs(_bytes_ratio(rows, name, other) - 1) < EQUAL_BYTES:
                yield from _less(rows, f"from-{other}/{name}", name, other, LOWER)


def _bytes_ratio(rows: Rows, first: str, second: str) -> float:
    """Return the bytes of a method's parameters over those of another, means over training and seeds."""
    one, other = (float(np.mean(rows[name]["bytes"]["parameter_bytes"]["seeds"])) for name in (first, second))
    return one / other


def _less(
    rows: Rows,
    claim: str,
    first: str,
    second: str | None,
    statement: str,
    family: Family = "exploratory",
    goal: Goal = "difference",
    value: str = "test_loss",
) -> Iterator[Claim]:
    """Yield the claim that the first method has the smaller `value`, one of `LOSSES`, unless one of the methods is missing.

    statement: with fields for the methods, for their distinct layers in training, and for the first one's share of bytes.
    """
    if second is None or not {first, second} <= rows.keys():
        return
    size, other_size = (f"{np.mean(rows[name]['distinct_in_training']):.1f} distinct layers" for name in (first, second))
    fields = {"first": first, "second": second, "size": size, "other_size": other_size, "margin": MARGIN}
    statement = statement.format(**fields, bytes=share(_bytes_ratio(rows, first, second), 1))
    difference = np.array(rows[first][value]) - np.array(rows[second][value])
    estimand = f"the mean {LOSSES[value]}, {first} - {second}"
    about: dict[str, Any] = {"goal": goal, "family": family, "unit": "nats per token", "margin": MARGIN}
    diverged = rows[first]["diverged"] | rows[second]["diverged"]
    yield Claim(claim, statement, estimand, difference, -1, replaced=diverged, **about)


def _of_ties(rows: Rows) -> Iterator[Claim]:
    """Yield the claims about the copies that the agent makes, and the memory that its ties take."""
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
