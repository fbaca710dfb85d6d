"""Layer ties that an agent changes, under one of two rules: `resolved`, or `published`, the rule of the published code.

Under `resolved`, the rule that users expect, a copy of a copy reads that copy's owner, the copies of a layer that becomes a
copy follow it, and a layer that becomes independent has its own weights. `published_rule` describes the other rule and compares
the two.
"""

from typing import Literal

import numpy as np

from tiejax.tying import published_rule
from tiejax.tying.owner import LayerTies, Owner, Storage, Wiring, choose_owner, independent, sends_gradient, slots, stack_size

Rule = Literal["resolved", "published"]
Start = Literal["tied", "independent", "frozen-random", "told-tied"]
Gradient = Literal["all", "owner"]


def start_ties(layers: int, start: Start, rule: Rule) -> LayerTies:
    """Return the ties before the agent's first choice.

    * `tied`: all layers are copies of layer 0.
    * `independent`: no layer is a copy.
    * `frozen-random`: no layer is a copy, the layers above layer 0 are frozen at their random initial values, and the agent
      observes all as copies of layer 0. The published code starts like this.
    * `told-tied`: no layer is a copy and all train, but the agent observes all as copies of layer 0. The published code starts
      BERT like this.

    The rule matters for `tied`, where only layer 0 trains under the published rule.
    """
    untied, all_first, every = independent(layers), np.zeros(layers, np.int32), np.ones(layers, bool)
    if start == "independent":
        return LayerTies(untied, every, untied)
    if start == "frozen-random":
        return LayerTies(untied, untied == 0, all_first)
    if start == "told-tied":
        return LayerTies(untied, every, all_first)
    return LayerTies(all_first, untied == 0 if rule == "published" else every, all_first)


def choose(ties: LayerTies, layer: int, choice: int, rule: Rule) -> LayerTies:
    """Apply an action of the agent: `layer` becomes a copy of the earlier layer `choice`, or independent if they are equal.

    Under the rule `resolved`, owners change as in `choose_owner`, and the agent observes the owners. A layer that started
    frozen trains once the agent has chosen for it. A layer that started independent but was observed as a copy is observed as a
    copy until then. There, TieError is raised if there is no such layer, or if `choice` is a later one.
    """
    if rule == "published":
        return published_rule.choose(ties, layer, choice)
    owner, chosen = choose_owner(ties.owner, layer, choice), np.arange(len(ties.owner)) == layer
    true = chosen | (ties.observation == ties.owner)
    return LayerTies(owner, ties.trains | chosen, np.where(true, owner, ties.observation).astype(np.int32))


def wiring(ties: LayerTies, storage: Storage, gradient: Gradient, rule: Rule) -> Wiring:
    """Convert layer ties to the arrays that a training step takes.

    storage: as in `slots`. gradient: which layers train the weights that they read: `all` of them, or the `owner` alone;
    ignored under the published rule, which itself determines the layers that train.
    """
    if rule == "published":
        return published_rule.wiring(ties, storage)
    reads = slots(ties.owner, storage)
    # Frozen weights stay frozen, whichever other layers read them.
    sends = sends_gradient(ties.owner, gradient) & ties.trains[ties.owner]
    trained = np.bincount(reads[sends], minlength=stack_size(ties.owner, storage))
    return Wiring(reads, sends, np.minimum(trained, 1).astype(np.int32))


def fixed_wiring(owner: Owner, storage: Storage) -> Wiring:
    """Return the `Wiring` of a fixed map, under which every layer trains the weights that it reads; storage as in `slots`."""
    return wiring(LayerTies(owner, np.ones(len(owner), bool), owner), storage, "all", "resolved")
