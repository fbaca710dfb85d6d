"""The gate of studies on text: language models that do not clearly beat a bigram model decide no claim.

What such models decide is which of them descends faster at the very beginning of training.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tiejax.lab.settings.command_line import BadInput
from tiejax.statistics.claims import Claim

HELP = "train for more steps, on more text, or with a smaller vocabulary"


class Gate(NamedTuple):
    """The loss that models must reach.

    Attributes:
        bigram: loss of a bigram model of the tokens that a seed sees, in nats a token, on the same held-out text.
        margin: how far below it models must end; None if there is no such condition, negative to allow losses above it.
    """

    bigram: float
    margin: float | None

    def failing(self, losses: Mapping[str, float]) -> list[str]:
        """Return the names of the models that do not pass; losses: name -> mean final loss."""
        return [] if self.margin is None else [name for name, loss in losses.items() if not self.bigram - loss >= self.margin]

    def check(self, losses: Mapping[str, float]) -> None:
        """Raise BadInput, before the first reported seed, unless all models pass."""
        if failing := self.failing(losses):
            raise BadInput(f"--gate: {self._words(losses, failing)}; {HELP}, or lower --gate")

    def facts(self, losses: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Return the gate, the mean losses, and a sentence if these do not pass it, for results.json.

        losses: name -> final losses, `[seed]`. Models that diverged are left out; if all did, the mean is infinite.
        """
        finite = {name: np.extract(np.isfinite(values), values) for name, values in losses.items()}
        means = {name: float(values.mean()) if len(values) else np.inf for name, values in finite.items()}
        failing = self.failing(means)
        sentence = f"No claim is tested, since {self._words(means, failing)}." if failing else ""
        return {"gate": {"margin": self.margin, "bigram": self.bigram, "losses": means, "failed": sentence}}

    def _words(self, losses: Mapping[str, float], failing: Sequence[str]) -> str:
        ends = ", ".join(f"the {name} models end with {losses[name]:.3f} nats" for name in failing)
        return f"{ends}, where a bigram model has {self.bigram:.3f} and at least {self.margin:g} less is expected"


def untested(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims as exploratory ones, which are estimated and not tested."""
    return [dataclasses.replace(claim, family="exploratory") for claim in claims]
