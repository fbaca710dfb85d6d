"""How far the logits of a model move where another table takes the place of its output table."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.hub.families import levels
from tiejax.surgery.one_table import OneTable, blocks

TOGETHER = 16  # states whose distributions are in memory in float64 at one time


class Moved(NamedTuple):
    """How far logits moved, over some states.

    kl: mean of KL(softmax of the old logits || of the new), in nats. top1: part of the states whose likeliest token stayed.
    loss_before, loss_after: mean of -ln softmax(logits)[target], in nats, where the targets are known.
    """

    kl: float
    top1: float
    loss_before: float | None
    loss_after: float | None


def moved(
    table: OneTable,
    before: Float[np.ndarray, "states width"],
    after: Float[np.ndarray, "states width"],
    bias: Float[np.ndarray, "tokens"] | None,
    config: dict[str, Any],
    targets: Int[np.ndarray, "states"] | None = None,
) -> Moved:
    """Return how far logits move from before . Y^T + b to (after diag(c)) . T^T + b, c where the table has one.

    before, after: the states that the output table reads, of the old model and of the new. config: whose factors and cap of
    logits count. Raises CheckpointError where a file cannot be read.
    """
    after = after if table.scale is None else (after * table.scale).astype(np.float32)
    old, new = np.empty((2, len(before), table.input.shape[0]), np.float32)
    for block in blocks(table.input):
        old[:, block] = before @ table.output[block].T
        new[:, block] = after @ table.rows(block).T
    nats, stayed, losses = 0.0, 0, np.zeros(2)
    for start in range(0, len(before), TOGETHER):
        part = slice(start, start + TOGETHER)
        log_p, log_q = (log_probabilities(logits[part], bias, config) for logits in (old, new))
        nats += float((np.exp(log_p) * (log_p - log_q)).sum())
        stayed += int((log_p.argmax(axis=1) == log_q.argmax(axis=1)).sum())
        if targets is not None:
            places = np.arange(len(log_p)), targets[part]
            losses -= [log_p[places].sum(), log_q[places].sum()]
    number = len(before)
    known = targets is not None
    return Moved(
        max(nats / number, 0.0),
        stayed / number,
        float(losses[0] / number) if known else None,
        float(losses[1] / number) if known else None,
    )


def log_probabilities(
    logits: Float[np.ndarray, "states tokens"], bias: Float[np.ndarray, "tokens"] | None, config: dict[str, Any]
) -> Float[np.ndarray, "states tokens"]:
    """Return ln softmax(f(logits + b)) in float64; f: the factor and the cap that the configuration names."""
    logits = logits.astype(np.float64) if bias is None else logits.astype(np.float64) + bias
    text = levels(config).get("text_config.", config)
    if is_number(factor := text.get("logit_scale")):
        logits = logits * factor
    if is_number(divisor := text.get("logits_scaling")) and divisor:
        logits = logits / divisor
    if is_number(cap := text.get("final_logit_softcapping")) and cap:
        logits = cap * np.tanh(logits / cap)
    shifted: np.ndarray = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
