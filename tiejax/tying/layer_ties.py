"""The ties of a stack while an agent chooses them, by one of two rules: resolved ties, or those of the published code.

resolved: what a user expects. A copy of a copy has its owner, the copies of a layer that becomes a copy follow it, and a layer
that becomes independent has weights of its own. published: `published_rule`, where a table compares both.
"""

from typing import Literal

import numpy as np
from jaxtyping import Bool

from tiejax.tying import published_rule
from tiejax.tying.owner import LayerTies, Storage, Wiring, choose_owner, independent, places, sends_gradient, stack_size

Rule = Literal["resolved", "published"]
Start = Literal["tied", "independent", "frozen-random", "told-tied"]
Gradient = Literal["all", "owner"]


def start_ties(layers: int, start: Start, rule: Rule) -> LayerTies:
    """Return the ties before the first choice.

    tied: all are copies of layer 0. independent: none is a copy. frozen-random, as the published code starts: none is a copy,
    those above layer 0 are frozen as they were drawn, and the agent is told that they are copies of layer 0. told-tied, as it
    starts a BERT: the agent is told the same, but no layer is frozen.
    """
    untied, all_first, every = independent(layers), np.zeros(layers, np.int32), np.ones(layers, bool)
    if start == "independent":
        return LayerTies(untied, every, untied)
    if start == "frozen-random":
        return LayerTies(untied, untied == 0, all_first)
    if start == "told-tied":
        return LayerTies(untied, every, all_first)
    return published_rule.start_tied(layers) if rule == "published" else LayerTies(all_first, every, all_first)


def choose(ties: LayerTies, layer: int, choice: int, rule: Rule) -> LayerTies:
    """Return the ties after an action: `layer` copies the earlier layer `choice` or, if that is itself, is independent."""
    if rule == "published":
        return published_rule.choose(ties, layer, choice)
    return choose_resolved(ties, layer, choice)


def choose_resolved(ties: LayerTies, layer: int, choice: int) -> LayerTies:
    """Return the ties after an action by resolved ties: owners as `choose_owner` has them, and the agent is told these.

    A layer that has started frozen trains from the first choice for it on. Where the agent has been told at the start of a copy
    that there is not, the observation says so until that choice.
    """
    owner, chosen = choose_owner(ties.owner, layer, choice), np.arange(len(ties.owner)) == layer
    told = chosen | (ties.observation == ties.owner)
    return LayerTies(owner, ties.trains | chosen, np.where(told, owner, ties.observation).astype(np.int32))


def wiring(ties: LayerTies, storage: Storage, gradient: Gradient, rule: Rule) -> Wiring:
    """Return what a step is told.

    gradient: weights are trained by `all` layers that read them, or by the `owner` alone; the published rule has its own.
    """
    if rule == "published":
        return published_rule.wiring(ties, storage)
    reads = places(ties.owner, storage)
    # Frozen weights stay frozen, whoever else reads them.
    sends: Bool[np.ndarray, "layers"] = sends_gradient(ties.owner, gradient) & ties.trains[ties.owner]
    trained = np.bincount(reads[sends], minlength=stack_size(ties.owner, storage))
    return Wiring(reads, sends, np.minimum(trained, 1).astype(np.int32))
