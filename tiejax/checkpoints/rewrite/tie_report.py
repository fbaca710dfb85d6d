"""The report on tying a checkpoint: how much the tables and the logits change, and whether that is too much."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.checkpoints.hub.architectures import Architecture
from tiejax.checkpoints.hub.arrays import vector
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import flag_of
from tiejax.checkpoints.hub.locate import bias_of
from tiejax.checkpoints.hub.stored import WORDS, Relation
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.checkpoints.rewrite.logits import Transform, logit_transform, states_factor
from tiejax.checkpoints.rewrite.one_table import Distances, OneTable, blocks, distances
from tiejax.checkpoints.rewrite.states import FEWEST_STATES, LastNorm, drawn, given
from tiejax.system.memory import size_words

# Limits of the mean KL divergence, in nats, and of the share of states whose likeliest token stays the same.
MOST_KL, LEAST_TOP1 = 0.01, 0.99
# Limit of the relative change of the input table if the model is not run: fixed hidden states do not show its effect.
MOST_INPUT = 0.01
UNKNOWN_SCALE = "no layer normalisation is known to precede the head, so that the scale of the hidden states is a guess"
TOGETHER = 2**22  # number of logits in memory at one time, of all states and a block of tokens


class Moved(NamedTuple):
    """Change of the logits over a set of states.

    kl: mean KL(softmax(old logits) || softmax(new logits)), in nats. top1: share of the states whose likeliest token stays the
    same. loss_before, loss_after: mean of -ln softmax(logits)[target], in nats; None if the targets are unknown.
    """

    kl: float
    top1: float
    loss_before: float | None
    loss_after: float | None


class Softmax:
    """A streaming softmax for each state over blocks of tokens: the normaliser and the likeliest token so far."""

    def __init__(self, states: int) -> None:
        self.most, self.sum = np.full(states, -np.inf), np.zeros(states)
        self.likeliest = np.zeros(states, np.int64)

    def see(
        self, logits: Float[np.ndarray, "states block"], first: int
    ) -> tuple[Float[np.ndarray, " states"], Float[np.ndarray, "states block"]]:
        """Add the logits of a block of tokens that starts at `first`.

        Returns the factor by which earlier sums are rescaled, and exp(logits) of the block on the new scale.
        """
        token = logits.argmax(axis=1)
        highest = np.take_along_axis(logits, token[:, None], axis=1)[:, 0]
        self.likeliest = np.where(highest > self.most, first + token, self.likeliest)
        most = np.maximum(self.most, highest)
        less, self.most = np.exp(self.most - most), most
        added = np.exp(logits - most[:, None])
        self.sum = self.sum * less + added.sum(axis=1)
        return less, added

    @property
    def log_sum(self) -> Float[np.ndarray, " states"]:
        """The logarithm of the sum of exp(logits), for each state."""
        return self.most + np.log(self.sum)


def moved(
    table: OneTable,
    before: Float[np.ndarray, "states width"],
    after: Float[np.ndarray, "states width"],
    bias: Float[np.ndarray, " tokens"] | None,
    config: dict[str, Any],
    targets: Int[np.ndarray, " states"] | None = None,
) -> Moved:
    """Compare the logits before . Y^T + b with (after diag(c)) . T^T + b, where c is the scale of the table, if any.

    before, after: hidden states before the output table, in the old and the new model. config: the model's configuration, for
    the transform of its logits. Both tables are read once, in blocks of tokens: with l the old logits and m the new ones,
    KL = sum_t p_t (l_t - m_t) - ln sum e^l + ln sum e^m. Raises CheckpointError if a file cannot be read or a number is not
    finite.
    """
    old, new, number = Softmax(len(before)), Softmax(len(before)), len(before)
    difference, target_logits = np.zeros(number), np.zeros((2, number))
    for first, was, now in _logits(table, before, after, bias, logit_transform(config)):
        less, added = old.see(was, first)
        new.see(now, first)
        difference = difference * less + np.einsum("ij,ij->i", added, was - now)
        if targets is not None:
            here = np.flatnonzero((targets >= first) & (targets < first + was.shape[1]))
            target_logits[:, here] = [logits[here, targets[here] - first] for logits in (was, now)]
    kl = float(np.mean(difference / old.sum - old.log_sum + new.log_sum))
    losses = [float(np.mean(softmax.log_sum - found)) for softmax, found in zip((old, new), target_logits, strict=True)]
    if not np.isfinite([kl, *losses]).all():
        raise CheckpointError(f"{table.output.file}: {table.output.name}: the logits are not finite")
    known = targets is not None
    top1 = float(np.mean(old.likeliest == new.likeliest))
    return Moved(max(kl, 0.0), top1, losses[0] if known else None, losses[1] if known else None)


def _logits(
    table: OneTable, before: np.ndarray, after: np.ndarray, bias: np.ndarray | None, transform: Transform
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield, for each block of tokens, its first token and the old and new logits in float64; raises CheckpointError."""
    with np.errstate(all="ignore"):  # an overflow shows in the logits
        scaled = after if table.scale is None else (after * table.scale).astype(np.float32)
    for block in blocks(table.input, "logits", max(TOGETHER // len(before), 1)):
        with np.errstate(all="ignore"):
            pair = before @ table.output[block].T, scaled @ table.rows(block).T
        for one, logits in zip((table.output, table.input), pair, strict=True):
            if not np.isfinite(logits).all():
                raise CheckpointError(f"{one.file}: {one.name}: the logits are not finite in float32")
        added = 0 if bias is None else bias[block]
        was, now = (transform(logits.astype(np.float64) + added) for logits in pair)
        yield block.start, was, now


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

    keep: the table for both roles. relation: of the two old tables. distances: of the new table from both old ones, relative to
    their norms. by: the source of the hidden states. whole: whether both models were run, so that the new input table has an
    effect. any_scale: whether the scale of the hidden states is a guess, as no layer normalisation is known to precede the
    head. flagged: the source of the flag if the configuration already says tied, else None.
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
        if self.states < FEWEST_STATES and (self.distances.input > 0 or self.distances.output > 0):
            return (
                f"{self.states:,} hidden states are too few for a share of states within 1 %, which needs at least "
                f"{FEWEST_STATES}: give more states, or a longer text"
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
        return [*lines, f"saves {size_words(self.bytes_saved)}"]

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
        states = drawn(number, width, pair.norm, seed, states_factor(pair.checkpoint.config, width))
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
