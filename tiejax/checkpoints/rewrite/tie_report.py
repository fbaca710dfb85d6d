"""The report on tying a checkpoint: how much the tables and the logits change, and whether that is too much."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.checkpoints.hub.architectures import Architecture
from tiejax.checkpoints.hub.arrays import vector
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.families import flag_of
from tiejax.checkpoints.hub.locate import bias_of
from tiejax.checkpoints.hub.stored import WORDS, Relation
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.checkpoints.rewrite.last_norm import LastNorm
from tiejax.checkpoints.rewrite.logits import Moved, moved
from tiejax.checkpoints.rewrite.one_table import Distances, OneTable, distances
from tiejax.checkpoints.rewrite.states import States, drawn, given

# Limits of the mean KL divergence, in nats, and of the share of states whose likeliest token stays the same.
MOST_KL, LEAST_TOP1 = 0.01, 0.99
# Limit of the relative change of the input table if the model is not run: fixed hidden states do not show its effect.
MOST_INPUT = 0.01
UNKNOWN_SCALE = "no layer normalisation is known to precede the head, so that the scale of the hidden states is a guess"


class Pair(NamedTuple):
    """A checkpoint with two tables of one shape. norm: the layer normalisation before the output table, None if unknown."""

    checkpoint: Checkpoint
    architecture: Architecture
    relation: Relation
    input: Tensor
    output: Tensor
    norm: LastNorm | None


class Report(NamedTuple):
    """The effect of tying a checkpoint.

    Attributes:
        keep: the table for both roles
        relation: the relation of the two old tables
        distances: distances of the new table from both old ones, relative to their norms
        by: the source of the hidden states
        states: the number of hidden states
        whole: whether both models were run, so that the new input table has an effect
        moved: the change of the logits
        bytes_saved: bytes of the table that is no longer stored
        any_scale: whether the scale of the hidden states is a guess, as no layer normalisation is known to precede the head
        flagged: the source of the flag if the configuration already says tied, else None
    """

    keep: str
    relation: Relation
    distances: Distances
    by: str
    states: int
    whole: bool
    moved: Moved
    bytes_saved: int
    any_scale: bool = False
    flagged: str | None = None

    def obstacle(self) -> str | None:
        """Return the reason against tying this checkpoint, None if there is none."""
        # Written as a negation, so that NaN does not pass.
        if not (self.moved.kl <= MOST_KL and self.moved.top1 >= LEAST_TOP1):
            return (
                f"logits move by {self.moved.kl:.3g} nat (at most {MOST_KL:g}), and {self.moved.top1:.1%} of the likeliest "
                f"tokens stay the same (at least {LEAST_TOP1:.0%})"
            )
        if not self.whole and self.distances.input > MOST_INPUT:
            return (
                f"the input table moves by {self.distances.input:.1%} of its norm, with an effect that is not measured without "
                "running the model: give a text if the model's family can be run, or keep the input table"
            )
        if self.any_scale and self.distances.output > 0:
            return f"{UNKNOWN_SCALE}: give a file of hidden states, or a text if the model's family can be run"
        return None

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        names = {"mean": "the mean of both", "aligned": "the aligned table"}
        found = self.moved
        lines = [
            f"{WORDS[self.relation]}; keeping {names.get(self.keep, f'the {self.keep} table')}",
            f"relative change: input table {self.distances.input:.3%}, output table {self.distances.output:.3%}",
            f"on {self.states:,} hidden states {self.by}: KL {found.kl:.3g} nat, {found.top1:.2%} of the likeliest tokens stay "
            "the same",
        ]
        if self.any_scale:
            lines.append(f"{UNKNOWN_SCALE}: with larger states, the logits would move further")
        if self.flagged is not None:
            lines.append(f"config.json already says tied ({self.flagged}): loaders that trust it used the input table for both")
        if found.loss_before is not None and found.loss_after is not None:
            lines.append(f"loss {found.loss_before:.4f} before, {found.loss_after:.4f} after (nats per token)")
        return [*lines, f"saves {self.bytes_saved / 2**20:,.1f} MiB"]

    def as_json(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can hold."""
        plain = self._asdict() | {"distances": self.distances._asdict(), "moved": self.moved._asdict()}
        return plain | {"obstacle": self.obstacle()}


def measure(pair: Pair, table: OneTable, text: str | None, hidden: str | None, number: int, seed: int) -> Report:
    """Measure the effect of tying a checkpoint, on a text, on the hidden states in a file, or on random ones.

    number: number of random states, or of positions predicted in the text. Raises CheckpointError or CorpusError.
    """
    width = pair.input.shape[1]
    if text is not None:
        from tiejax.checkpoints.rewrite.text_states import states_on_text  # loads jax and Flax

        states = states_on_text(pair.checkpoint, table, text, number, seed)
    elif hidden is not None:
        states = given(Path(hidden).expanduser(), width)
    else:
        states = drawn(number, width, pair.norm, seed)
    return _report(pair, table, states)


def _report(pair: Pair, table: OneTable, states: States) -> Report:
    found = moved(table, states.before, states.after, _bias(pair), pair.checkpoint.config, states.targets)
    saved, flag = HubTable(pair.output).nbytes, flag_of(pair.checkpoint.config)
    flagged = flag.where if flag.tied else None
    measured_on = (states.by, len(states.before), states.whole)
    return Report(table.keep, pair.relation, distances(table), *measured_on, found, saved, states.any_scale, flagged)


def _bias(pair: Pair) -> np.ndarray | None:
    """Return the bias of the logits, None if there is none; raises CheckpointError if it is not a vector of finite numbers."""
    tensors, rows = pair.checkpoint.tensors, pair.output.shape[0]
    own = pair.output.name.removesuffix("weight") + "bias"
    name = own if own in tensors else bias_of(pair.checkpoint, [pair.output.name], rows)
    return None if name is None else vector(tensors[name], rows)
