"""The gate of studies on text: language models that do not clearly beat a bigram model decide no claim."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.rates import Tried, rate_lines
from tiejax.lab.settings.command_line import BadInput
from tiejax.statistics.claims import Claim

HELP = "train for more steps, on more text, or a smaller model"


class Gate(NamedTuple):
    """The loss that models must reach.

    Attributes:
        bigram: loss of a bigram model of the tokens that a seed sees, in nats a token, on the same held-out text.
        margin: how far below it models must end; None if there is no such condition, negative to allow losses above it.
        reference: what has this loss.
        unit: of the loss.
        option: what sets the gate.
    """

    bigram: float
    margin: float | None
    reference: str = "a bigram model"
    unit: str = "nats"
    option: str = "--gate"

    def failing(self, losses: Mapping[str, float]) -> list[str]:
        """Return the names of the models that do not pass; losses: name -> mean final loss."""
        return [] if self.margin is None else [name for name, loss in losses.items() if not self.bigram - loss >= self.margin]

    def check(self, losses: Mapping[str, float]) -> None:
        """Raise BadInput, before the first reported seed, unless all models pass."""
        if failing := self.failing(losses):
            raise BadInput(f"{self.option}: {self._words(losses, failing)}; {HELP}, or change {self.option}")

    def facts(self, losses: Mapping[str, float]) -> dict[str, Any]:
        """Return the gate, the losses, and a sentence if these do not pass it, for results.json."""
        failing = self.failing(losses)
        sentence = f"No claim is tested, since {self._words(losses, failing)}." if failing else ""
        return {"gate": {"margin": self.margin, "bigram": self.bigram, "losses": dict(losses), "failed": sentence}}

    def _words(self, losses: Mapping[str, float], failing: Sequence[str]) -> str:
        ends = ", ".join(f"the {name} models end with {losses[name]:.3f} {self.unit}" for name in failing)
        less = f" and at least {self.margin:g} less is expected" if self.margin else "; less is expected"
        return f"{ends}, where {self.reference} has {self.bigram:.3f}{less}"


def check_tried(settings: Any, tried: Mapping[Any, Tried], bigram_loss: Callable[[int], float], console: Console) -> None:
    """Print the rates that were chosen; raise BadInput unless the models of every class pass the gate of the settings.

    bigram_loss: seed -> loss of the bigram model of the tokens that it sees.
    """
    for line in rate_lines(tried):
        console.say(line)
    if tried and settings.gate is not None:
        seed = settings.tuning_seeds[0]
        loss = bigram_loss(seed)
        console.say(f"bigram model of the tokens of seed {seed}: {loss:.4f} nats")
        Gate(loss, settings.gate).check({str(kind): each.losses[each.best].mean() for kind, each in tried.items()})


def finite_means(losses: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the mean final loss of each arm over the seeds that have not diverged, infinite if all have."""
    finite = {arm: values[np.isfinite(values)] for arm, values in losses.items()}
    return {arm: float(values.mean()) if len(values) else np.inf for arm, values in finite.items()}


def untested(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims as exploratory ones, which are estimated and not tested."""
    return [dataclasses.replace(claim, family="exploratory") for claim in claims]
