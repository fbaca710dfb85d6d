"""What tying a checkpoint does to it: how far both tables and the logits move, and whether that is too far."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.families import bias_of, flag_of
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.checkpoints.rewrite.last_norm import LastNorm
from tiejax.checkpoints.rewrite.logits import Moved, moved
from tiejax.checkpoints.rewrite.one_table import Distances, OneTable, distances
from tiejax.checkpoints.rewrite.states import States, drawn, given
from tiejax.checkpoints.rewrite.stored import WORDS, Relation
from tiejax.checkpoints.rewrite.vectors import vector

MOST_KL, LEAST_TOP1 = 0.01, 0.99
# Of the input table, where the model is not run: what it makes of other inputs no logits of given states can show.
MOST_INPUT = 0.01
UNKNOWN_SCALE = "no layer normalisation is known to stand before the head, so that the size of its states is a guess"


class Pair(NamedTuple):
    """A checkpoint with two tables of one shape, and the layer normalisation before the output table, where it is known."""

    checkpoint: Checkpoint
    relation: Relation
    input: Tensor
    output: Tensor
    norm: LastNorm | None


class Report(NamedTuple):
    """What tying does. relation: of the two tables. by: the states. whole: the model was run with its new input table.

    any_scale: no layer normalisation is known to stand before the head, so that nothing says how large its states are. flagged:
    where the configuration says that the tables are tied already, None where it does not.
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
        """Say why this checkpoint had better not be tied so, None where nothing speaks against it."""
        # Not the other way round: a number that is none would pass.
        if not (self.moved.kl <= MOST_KL and self.moved.top1 >= LEAST_TOP1):
            return (
                f"logits move by {self.moved.kl:.3g} nat, and {self.moved.top1:.1%} of the likeliest tokens stay: more than "
                f"{MOST_KL:g} nat, or less than {LEAST_TOP1:.0%}"
            )
        if not self.whole and self.distances.input > MOST_INPUT:
            return (
                f"the input table moves by {self.distances.input:.1%} of its norm, and what the model makes of that is not "
                "seen: give a text, where the model can be run, or keep the input table"
            )
        if self.any_scale and self.distances.output > 0:
            return f"{UNKNOWN_SCALE}: give states by --hidden, or a text, where the model can be run"
        return None

    def lines(self) -> list[str]:
        """Write the report, a sentence a line."""
        kept = {"mean": "the mean of both", "aligned": "both, aligned"}.get(self.keep, f"the {self.keep} table")
        found = self.moved
        lines = [
            f"{WORDS[self.relation]}; kept: {kept}",
            f"moved, of its norm: the input table {self.distances.input:.3%}, the output table {self.distances.output:.3%}",
            f"on {self.states:,} states {self.by}: KL {found.kl:.3g} nat, {found.top1:.2%} of the likeliest tokens stay",
        ]
        if self.any_scale:
            lines.append(f"{UNKNOWN_SCALE}: were they larger, logits would move further")
        if self.flagged is not None:
            lines.append(f"config.json says tied already ({self.flagged}): who trusts it has used the input table for both")
        if found.loss_before is not None and found.loss_after is not None:
            lines.append(f"loss {found.loss_before:.4f} before, {found.loss_after:.4f} after, in nats a token")
        return [*lines, f"saves {self.bytes_saved / 2**20:,.1f} MiB"]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain numbers and text."""
        plain = self._asdict() | {"distances": self.distances._asdict(), "moved": self.moved._asdict()}
        return plain | {"obstacle": self.obstacle()}


def measure(pair: Pair, table: OneTable, text: str | None, hidden: str | None, number: int, seed: int) -> Report:
    """Return what tying does to a checkpoint, seen on a text, on the states of a file, or on so many that are drawn.

    Raises CheckpointError or CorpusError.
    """
    width = pair.input.shape[1]
    if text is not None:
        from tiejax.checkpoints.rewrite.text_states import of_text  # loads jax and Flax

        states = of_text(pair.checkpoint, table, text, number, seed)
    elif hidden is not None:
        states = given(Path(hidden).expanduser(), width)
    else:
        states = drawn(number, width, pair.norm, seed)
    return _report(pair, table, states)


def _report(pair: Pair, table: OneTable, states: States) -> Report:
    found = moved(table, states.before, states.after, _bias(pair), pair.checkpoint.config, states.targets)
    saved, flag = HubTable(pair.output).nbytes, flag_of(pair.checkpoint.config)
    flagged = flag.where if flag.tied else None
    of_states = (states.by, len(states.before), states.whole)
    return Report(table.keep, pair.relation, distances(table), *of_states, found, saved, states.any_scale, flagged)


def _bias(pair: Pair) -> np.ndarray | None:
    """Return what the model adds to its logits; raises CheckpointError where that is no vector of finite numbers."""
    tensors, rows = pair.checkpoint.tensors, pair.output.shape[0]
    own = pair.output.name.removesuffix("weight") + "bias"
    name = own if own in tensors else bias_of(pair.checkpoint, [pair.output.name], rows)
    return None if name is None else vector(tensors[name], rows)
